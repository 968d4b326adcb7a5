"""The names of the commands, with a line for each."""

COMMANDS = {
    "train": "train one encoder (with -m: a Hydra multirun)",
    "sweep": "train every variant of a grid, one process each, and resume by itself",
    "status": "show where a sweep stands, while it runs",
    "compare": "compare the variants of a sweep",
    "doctor": "find what is damaged or stray among results, and repair it",
    "parts": "list every part and preset that can be chosen",
    "explain": "show a configuration's equations, parameters and FLOPs",
    "show": "show a resolved configuration and where each value comes from",
}

WITH_OVERRIDES = ("train", "sweep", "explain", "show")
