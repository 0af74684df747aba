"""Checkpoints: folders that appear complete or not at all. No pickle: JSON, and tensors in safetensors.

| file     | job                                                                    |
|----------|------------------------------------------------------------------------|
| store    | the folders of a run: write one, find the newest complete one, prune   |
| manifest | what lies in one, by size and checksum                                 |
| names    | step numbers and folder names, and which of them to keep               |
| groups   | finished groups, to disk and back without loss                         |
| compare  | which changed settings change what is trained                          |
| cadence  | when one is due                                                        |
"""
