"""What the program gives to its surroundings and takes from them: exit codes and environment variables."""

EXIT_CODES = {
    0: "done",
    1: "unexpected: a bug, to be reported with the lines shown, or a reader of stdout that went away",
    2: "usage: an option, or options that contradict each other",
    3: "model: not found, not readable, not trusted, or a training that diverged",
    4: "corpus: not found, not readable, or nothing in it to measure",
    5: "measurement: a place that never fires, sums that do not fit together",
    6: "output: a folder that cannot be written or read",
    130: "interrupted by Ctrl-C (SIGINT); the same command with --resume goes on",
    143: "ended by SIGTERM; the same command with --resume goes on",
}

ENVIRONMENT = {
    "ANISOSCOPE_DATA": "a folder of corpora: what lies in it can be named without its path",
    "ANISOSCOPE_SERIES": "a folder of series of checkpoints that studies read instead of training their own",
    "ANISOSCOPE_CACHE": "where vocabularies are kept (default: $XDG_CACHE_HOME/anisoscope, else ~/.cache/anisoscope)",
    "HF_HOME": "the cache of models and data sets of the hub",
    "HF_ENDPOINT": "another hub",
    "HF_TOKEN": "access to gated models and data sets",
    "HF_HUB_OFFLINE": "1: ask no hub, read the cache only",
    "OMP_NUM_THREADS": "threads of the arithmetic on a CPU",
    "RANK, WORLD_SIZE": "set by torchrun: this process' number and how many there are",
    "COLUMNS": "width of the terminal, where it is not known",
    "NO_COLOR, TERM=dumb, CI=true": "no colours; the last two: no moving bar, but a plain line now and then",
}
