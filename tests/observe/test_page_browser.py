"""The page in a real browser: what a person sees of a run, served, live and as one file."""

import asyncio
import os
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from browser_cases import MISSING, Tab, chromium, find_chromium, tab
from page_cases import HOSTILE, record, write_run

from asyncgrpo.cli.main import main
from asyncgrpo.observe.page.handlers import PageHandlers
from asyncgrpo.observe.page.reader import RunReader
from asyncgrpo.observe.recorder import Recorder
from asyncgrpo.observe.run_folder import RunFolder
from asyncgrpo.observe.server import MetricsServer
from asyncgrpo.testing.tiny import make_tokenizer

pytestmark = pytest.mark.skipif(find_chromium() is None and "ASYNCGRPO_CI" not in os.environ, reason=MISSING)

VIEWS = ("curves", "timeline", "rollouts", "numbers", "settings", "warnings")
QUIET = "(document.querySelector('#problem').hidden)"


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with chromium(tmp_path_factory.mktemp("profile")) as address:
        yield address


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    return write_run(tmp_path / "demo")


@asynccontextmanager
async def shown(browser: str, folder: RunFolder, view: str = "curves") -> AsyncIterator[tuple[Tab, str]]:
    """A tab with the served page in it, and the address."""
    reader = RunReader(folder, make_tokenizer().backend_tokenizer)
    server = MetricsServer(None, "127.0.0.1", 0, None, PageHandlers(reader, 20.0))
    async with asyncio.timeout(60), server, tab(browser) as page:
        await page.open(f"{server.url}/#{view}")
        yield page, str(server.url)
        assert page.complaints == []
        assert {url.split("/")[2] for url in page.asked if url.startswith("http")} == {str(server.url)[7:]}


async def test_every_view_of_a_run(browser: str, folder: RunFolder) -> None:
    async with shown(browser, folder) as (page, _):
        for view, script in (
            ("curves", "document.querySelectorAll('svg.chart path.line').length > 8"),
            ("timeline", "document.querySelectorAll('svg.lanes path.span').length > 4"),
            ("rollouts", "document.querySelectorAll('.tokens .t').length > 9"),
            ("numbers", "document.querySelectorAll('table.numbers tbody tr').length > 25"),
            ("settings", "document.querySelectorAll('.config .setting:not([hidden])').length === 2"),
            ("warnings", "document.querySelectorAll('.warnings li').length === 3"),
        ):
            await page.ask(f"location.hash = '{view}'")
            await page.until(f"{script} && {QUIET}")
            assert await page.ask("document.querySelector('nav a[aria-current]').hash") == f"#{view}"
        assert await page.ask("document.title") == "demo · asyncgrpo"
        assert await page.ask("document.querySelector('#progress').textContent") == "step 24 of 24"
        assert await page.ask("document.querySelector('#warning-count').textContent") == "3"


async def test_curves_say_what_was_recorded(browser: str, folder: RunFolder) -> None:
    async with shown(browser, folder) as (page, _):
        await page.until("document.querySelectorAll('svg.chart .layer').length >= 7")
        titles = await page.ask("[...document.querySelectorAll('figcaption h3')].map((each) => each.textContent)")
        assert titles[:3] == ["Reward", "Staleness", "Learner's time"]
        assert {"Entropy", "KL divergences", "Throughput", "Overlap"} <= set(titles)
        legend = "[...document.querySelectorAll('.legend')][{}].innerText.replace(/\\s+/g, ' ')"
        assert await page.ask("document.querySelectorAll('path.point').length") == 4
        assert "held-out mean@4 0.8" in await page.ask(legend.format(0))
        assert (await page.ask(legend.format(2))).startswith("training 65 % waiting 25 % snapshot 5 % other 5 %")
        # The cursor, by keys: the third step, in all charts at once.
        await page.ask("document.querySelector('svg.chart').focus()")
        for _ in range(3):
            await page.press("ArrowRight")
        staleness = await page.until(f"{legend.format(1)}.endsWith('step 3') && {legend.format(1)}")
        assert staleness.startswith("0 versions 5")  # a share of the tokens
        # Hide a line by its name.
        before = await page.ask(
            "document.querySelector('figure path.line').parentNode.querySelectorAll('path.line').length"
        )
        await page.ask("document.querySelector('.legend button').click()")
        after = await page.ask("document.querySelector('figure svg.chart').querySelectorAll('path.line').length")
        assert (before, after) == (3, 2)


async def test_texts_of_a_run_are_never_markup(browser: str, folder: RunFolder) -> None:
    async with shown(browser, folder, "rollouts/step_000002/21") as (page, _):
        await page.until("document.querySelectorAll('.sample').length === 2 && document.querySelector('.tokens')")
        prompt = await page.ask("document.querySelector('.message').textContent")
        assert prompt == f"Say {HOSTILE}".replace("\x1b", "\\x1b").replace("\u202e", "\\x202e")
        assert "<script>window.pwned" in await page.ask("document.querySelector('.sample .pairs + .pairs').textContent")
        await page.ask("location.hash = 'warnings'")
        await page.until("document.body.innerText.includes('<img src=x onerror')")
        assert await page.ask("window.pwned === undefined && !document.querySelector('main img, main script')")


async def test_samples_token_by_token(browser: str, folder: RunFolder) -> None:
    async with shown(browser, folder, "rollouts/step_000002/20") as (page, _):
        tokens = "[...document.querySelector('.sample .tokens').children]"
        await page.until("document.querySelectorAll('.sample .tokens').length === 2")
        kinds = await page.ask(f"{tokens}.map((each) => each.classList[1])")
        assert kinds == ["stale-1"] * 4 + ["stale-0"] * 3
        await page.ask(f"{tokens}[5].dispatchEvent(new PointerEvent('pointerover', {{bubbles: true}}))")
        told = await page.ask("document.querySelector('.told').textContent")
        assert told.startswith("token 6 of 7: ")
        assert told.endswith("sampled by version 1, staleness 0, gap −0.2237, advantage +1")  # noqa: RUF001
        await page.ask(
            "(() => { const by = document.querySelector('.push select'); by.value = 'advantage';"
            " by.dispatchEvent(new Event('change')); })()"
        )
        assert await page.ask(
            "[...document.querySelectorAll('.sample')].map((each) => each.querySelector('.t').classList[1])"
        ) == ["better", "worse"]
        # The next group by keys; its middle was given by the environment.
        await page.ask("document.querySelector('.row').focus()")
        await page.press("ArrowDown")
        await page.press("Enter")
        await page.until("location.hash.endsWith('/21') && document.querySelector('.t.given')")
        assert await page.ask("document.querySelector('.sample .tokens').querySelectorAll('.given').length") == 3


async def test_the_timeline_can_be_looked_into(browser: str, folder: RunFolder) -> None:
    async with shown(browser, folder, "timeline") as (page, _):
        said = "document.querySelector('.said').textContent"
        first = await page.until(f"{said}.includes('Learner: ') && {said}")
        assert "training 6" in first
        names = await page.ask("[...document.querySelectorAll('.lane')].map((each) => each.textContent)")
        assert names == ["learner", "engine-0", "engine-1"]
        labels = await page.ask("[...document.querySelectorAll('.inside.training')].map((each) => each.textContent)")
        assert labels == [f"step {step}" for step in range(17, 25)]
        await page.ask("document.querySelector('svg.lanes').focus()")
        await page.press("+")
        await page.until("document.querySelectorAll('.inside.training').length < 7")
        await page.press("-")
        await page.press("-")
        await page.until("document.querySelectorAll('.inside.training').length > 12")


async def test_keys_go_through_tokens_and_the_skip_link_keeps_the_view(browser: str, folder: RunFolder) -> None:
    async with shown(browser, folder, "rollouts/step_000002/20") as (page, _):
        await page.until("document.querySelectorAll('.sample .tokens').length === 2")
        await page.ask("document.querySelector('.sample .tokens').focus()")
        said = "document.querySelector('.told').textContent"
        for key, place in (("ArrowRight", 1), ("ArrowRight", 2), ("ArrowLeft", 1), ("ArrowLeft", 1)):
            await page.press(key)
            await page.until(f"{said}.startsWith('token {place} of 7: ')")
        assert await page.ask("document.querySelectorAll('.tokens .t.here').length") == 1
        await page.ask("document.querySelector('.skip').click()")
        assert await page.ask("document.activeElement.id") == "main"
        assert await page.ask("document.querySelector('nav a[aria-current]').hash") == "#rollouts"


async def test_what_cannot_be_seen_is_shown_and_numbers_stay_short(browser: str, folder: RunFolder) -> None:
    async with shown(browser, folder) as (page, _):
        await page.until("document.querySelector('svg.chart path.line')")
        hidden = "'a\\u200bb\\u{e0041}c\\u00ad\\ufeff\\u202e\\n\\t'"
        assert await page.ask(f"page.visible({hidden})") == "a\\x200bb\\xe0041c\\xad\\xfeff\\x202e↵\n⇥\t"
        shown_as = {"1e30": "1.0e30", "-2.5e15": "−2.5e15", "1.5e12": "1500G", "12345": "12.35k", "1e-30": "1.0e−30"}  # noqa: RUF001
        for value, text in shown_as.items():
            assert await page.ask(f"page.number({value})") == text


async def test_a_number_draws_its_curve(browser: str, folder: RunFolder) -> None:
    async with shown(browser, folder, "numbers") as (page, _):
        await page.until("document.querySelector('table.numbers tbody tr')")
        await page.ask(
            "(() => { const find = document.querySelector('input[type=search]'); find.value = 'ratio/mean';"
            " find.dispatchEvent(new Event('input')); })()"
        )
        row = "document.querySelector('tbody tr:not([hidden])')"
        assert (await page.ask(f"{row}.innerText")).startswith("learner/ratio/mean")
        await page.ask(f"{row}.querySelector('button').click()")
        await page.until("document.querySelector('tr.drawn path.line')")


async def test_a_run_that_goes_on(browser: str, folder: RunFolder) -> None:
    async with shown(browser, folder) as (page, _):
        await page.until("document.querySelector('#state').textContent === 'running'")
        Recorder(folder).append_step(record(25, reward=7.25))
        await page.until("document.querySelector('.tiles').innerText.includes('+7.25')")
        assert await page.ask("document.querySelector('#progress').textContent") == "step 25 of 24"


async def test_no_view_is_wider_than_a_phone(browser: str, folder: RunFolder) -> None:
    async with shown(browser, folder) as (page, _):
        await page.look(375, 800)
        for view in VIEWS:
            await page.ask(f"location.hash = '{view}'")
            await page.until(f"document.querySelector('main > section').className === '{view}' && {QUIET}")
            await asyncio.sleep(0.1)
            assert await page.ask("document.documentElement.scrollWidth") <= 375, view


async def test_a_report_opens_without_anybody(
    browser: str, folder: RunFolder, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make_tokenizer().save_pretrained(folder.model_dir)
    assert main(["report", str(folder.path), "--out", str(tmp_path / "out.html"), "--samples", "8"]) == 0
    assert "out.html" in capsys.readouterr().out
    async with asyncio.timeout(60), tab(browser) as page:
        await page.open(f"file://{tmp_path / 'out.html'}")
        await page.until("document.querySelectorAll('svg.chart path.line').length > 8")
        for view in VIEWS[1:]:
            await page.ask(f"location.hash = '{view}'")
            await page.until(f"document.querySelector('main > section').className === '{view}' && {QUIET}")
        await page.ask("location.hash = 'rollouts/step_000001/11'")
        await page.until("document.querySelector('.tokens .t.given')")
        note = await page.ask("document.querySelector('.rollouts .hint').textContent")
        assert note.startswith("This report holds 8 samples, of 2 of the run's 3 steps")
        assert await page.ask("window.pwned === undefined")
        assert page.complaints == []
        assert {url.partition(":")[0] for url in page.asked} <= {"file", "data"}
