"""Code that users plug in: found by path (`importing`), called where it can hold up nothing (`threads`), and quoted in
messages (`texts`)."""
