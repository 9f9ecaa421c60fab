"""Command lines of every command, most of them wrong, and environments that are no better."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from hypothesis import strategies as st

from normbench.bench import __main__ as bench
from normbench.config.files import CONF, FIGURES, SWEEPS, TABLES, groups, load_options, names
from normbench.probe.options import KINDS
from normbench.status import STATES

#: Values that a key may be given by mistake or in malice.
STRANGE = (
    "", " ", "null", "nan", "inf", "-inf", "true", "false", "-1", "0", "1", "0.5", "1e999", "1_000",
    "0x10", "9" * 30, f"-{'9' * 30}", "9" * 5000, "1e-400", "[]", "{}", "[[]]", "[1,2]", "{a: 1}",
    "{a:{b:[1,{c:2}]}}", "[" * 200, "{a:" * 50, "'", '"', "'a", "\\", "\\n", "a b", "a,b", ",",
    ",,", "a=b", "=", ":", "a:b", "*", "?", "%s", "%(x)s", "{0}", "<b>&amp;</b>", "$x$", "$",
    "`id`", "../../x", "../norm/gn", "/etc", "/etc/passwd", "/dev/zero", "/proc/self/mem", ".",
    "..", "/", "~", "~nobody/x", "a/b/c", "a" * 300, "b" * 5000, "x" * 100_000, "é", "日本語",
    "\u202e", "\u0301", "\x1b[31m", "\x07", "\r", "\n", "a\nb", "\t", "\x7f", "\x85", "\udc80",
    "a\udcff", "\ufeff", "${batch}", "${norm}", "${nope}", "${", "${}", "${oc.env:HOME}",
    "${oc.env:NOPE}", "${oc.create:[1]}", "${oc.decode:'['}", "${oc.select:norm}",
    "${hydra:job.name}", "${hydra.job.num}", "${norm.eps}", "???", "!!python/object:os.system",
    "&a [*a]", "choice(1,2)", "choice()", "range(5,0)", "range(0,1e9)", "range(0,3)", "range(1)",
    "range(0,1,0)", "range(x)", "glob(*)", "glob(zzz*)", "glob([a,b],exclude=*)", "interval(0,1)",
    "sort(3,1,2)", "shuffle(1,2)", "tag(a,1,2)", "int(x)", "float(1)", "str(1)",
    "json_str({a:1})", "extend_list(1)", "eval(1)",
)  # fmt: skip
#: Words that are no key=value of a configuration.
STRANGE_WORDS = (
    "--help", "-h", "--hydra-help", "--version", "--cfg", "job", "--info", "all", "-m",
    "--multirun", "--config-dir", "--config-name", "--config-path", "-cn", "-cd", "--package",
    "-p", "--resolve", "--shell-completion", "-sc", "install=bash", "--experimental-rerun",
    "runs", "--run", "-r", "-c", "--", "-", "---", "-x", "--nope", "--dry-run", "=", "==", "a",
    "+", "~", "++", "~=", "+=", "@", "vs", "all=1", "@a=b", "a@b", "_target_=null",
    "norm._target_=os.system", "norm._target_=null",
    "+norm._target_=normbench.norms.group.GroupNorm", "model._target_=builtins.print",
    "+_target_=x", "norm@x=gn", "norm@norm=gn", "+norm@extra=gn",
    "+norm@hydra.callbacks.x=gn", "+norm@hydra.sweeper=gn", "norm@hydra.launcher=gn",
    "~norm@hydra.callbacks.x", "~norm", "~trainer.threads",
    "~logger", "~protocol", "~hydra", "~batch", "~norm=gn", "+norm=gn", "++norm.eps=1", "+x=1",
    "++x.y.z=1", "+norm.zzz=1", "+model.arguments.pretrained=true", "norm=[gn,bn]", "norm=",
    "norm", "norm.=1", ".norm=1", "norm..eps=1", "norm.eps.x=1", "norm/gn=x", "norm=../norm/gn",
    "norm=/etc/passwd", "norm=gn.yaml", "trainer=../norm/gn", "hydra/launcher=zzz",
    "hydra/launcher=slurm", "hydra/launcher=submitit_local", "hydra/sweeper=basic",
    "hydra.sweeper.params.batch=1", "hydra.sweeper._target_=x", "hydra.mode=RUN",
    "hydra.mode=MULTIRUN", "hydra.run.dir=/tmp/x", "hydra.sweep.dir=x", "hydra.job.chdir=true",
    "hydra.output_subdir=x", "hydra.searchpath=[file:///etc]", "hydra.searchpath=[pkg://nope]",
    "hydra.verbose=true", "hydra.job.name=x", "hydra/job_logging=default", "hydra.launcher.x=1",
    "hydra/help=default", "hydra.job.config.override_dirname.kv_sep=x", "hydra=null",
    "sweeps=demo", "sweeps=zzz", "sweeps=../norm/gn", "sweeps=null", "grids=[{norm: gn}]",
    "grids=1", "+grids=1", "defaults=[]", "workers=0", "batch=3",
    "global_batch=100000000000000000000", "seed=4294967296", "seed=range(0,1e9)", "seed=-1",
    "precision=8", "init_from=0123456789ab@1", "init_from=x", "init_from=../../x@last",
    "init_from=norm.hard:false@3", "init_from=norm:zzz@3", "init_from=x:y:z@1", "init_only=[zzz]",
    "init_only=[ratio]",
    "loader=zzz", "runs=", "runs=null", "runs=/proc/x", "runs=/dev/null", "jobs=0", "jobs=1e9",
    "force=1", "trainer.threads=100000", "trainer.devices=1000000", "trainer.devices=[0]",
    "checkpoint.epochs=[0]", "checkpoint.every=nan", "probe.kinds=[zzz]", "logger.project=[]",
    "logger.project=../../x", "logger.mode=zzz", "logger.entity={a:1}", "model.name=../x",
    "model.depth=1000000", "model.width=10000000", "data.root=/dev/zero", "data.val=2",
    "data.size=0", "recipe.images=-1", "recipe.rates={a:b}", "recipe.lr=nan", "model=timm",
    "data=image_folder", "recipe.milestones=[zzz]",
)  # fmt: skip
KEYS = (
    "batch", "workers", "global_batch", "seed", "precision", "init_from", "init_only", "loader",
    "runs", "jobs", "force", "resume", "stack_seeds",
)  # fmt: skip
#: Values that work for each key.
VALUES = {
    "batch": ("4", "8", "2,4"), "workers": ("8", "16"), "global_batch": ("64", "128"),
    "seed": ("0", "1,2", "range(0,3)"), "precision": ("32-true", "bf16-mixed"),
    "init_from": ("null",), "init_only": ("null",), "loader": ("auto", "memory"),
    "runs": ("runs", "elsewhere"), "jobs": ("1", "2"), "force": ("true", "false"),
    "resume": ("true",), "stack_seeds": ("false",),
}  # fmt: skip
#: Environment variables, and values besides `STRANGE`.
VARIABLES = {
    "WANDB_MODE": ("zzz", "online", "disabled"), "WANDB_PROJECT": ("../../x", "a/b"),
    "WANDB_ENTITY": ("x y",), "WANDB_DIR": ("/proc/x",), "WANDB_BASE_URL": ("zzz",),
    "WANDB_API_KEY": ("short",), "WANDB_INIT_TIMEOUT": ("zzz",), "WANDB_SILENT": ("zzz",),
    "WANDB_SERVICE": ("zzz", "3-1-tcp-localhost-1"), "WANDB_HTTP_TIMEOUT": ("zzz",),
    "SLURM_JOB_ID": ("12", "x"), "SLURM_STEP_ID": ("0", "x"), "SLURM_STEP_NUM_TASKS": ("2", "x"),
    "SLURM_STEP_NUM_NODES": ("0", "1"), "SLURM_CPUS_PER_TASK": ("2", "x"), "SLURM_PROCID": ("0",),
    "SLURM_LOCALID": ("x",), "SLURM_NODEID": ("0",), "SLURM_STEP_NODELIST": ("a[1-", "localhost"),
    "SLURM_NTASKS": ("x",), "SLURM_ARRAY_JOB_ID": ("1",), "TORCHELASTIC_RUN_ID": ("none", "x"),
    "RANK": ("0", "7"), "WORLD_SIZE": ("2", "0"), "LOCAL_RANK": ("0",), "LOCAL_WORLD_SIZE": ("2",),
    "GROUP_RANK": ("0",), "GROUP_WORLD_SIZE": ("1",), "MASTER_ADDR": ("localhost", "nowhere"),
    "MASTER_PORT": ("0", "99999"), "TORCHELASTIC_USE_AGENT_STORE": ("True",),
    "LANG": ("C", "zz_ZZ"), "LC_ALL": ("C", "POSIX"), "TERM": ("dumb", "zzz"), "COLUMNS": ("1",
    "0"), "TMPDIR": ("/nowhere", "/proc", "t" * 200), "HOME": ("/nowhere",),
    "MPLCONFIGDIR": ("/proc/x",), "XDG_CACHE_HOME": ("/proc/x",), "NORMBENCH_SCRATCH": ("/",),
    "NORMBENCH_SEARCHPATH": ("/",), "CUDA_VISIBLE_DEVICES": ("zzz",),
    "NO_COLOR": ("1",), "PATH": ("",),
}  # fmt: skip
ENCODINGS = ("utf-8", "utf-8", "utf-8", "ascii", "latin-1")


@dataclass(frozen=True)
class CommandLine:
    """A command with its words and its environment."""

    command: str
    words: tuple[str, ...]
    environment: Mapping[str, str] = field(default_factory=dict, hash=False)
    encoding: str = "utf-8"

    def __str__(self) -> str:
        variables = [f"{name}={value!r:.60}" for name, value in self.environment.items()]
        words = [ascii(word) if len(word) < 200 else f"{word[:60]!a}..." for word in self.words]
        encoding = [f"({self.encoding})"] if self.encoding != "utf-8" else []
        return " ".join([*variables, f"python -m {self.command}", *words, *encoding])

    @property
    def culprits(self) -> tuple[str, ...]:
        """Beginnings of keys, values and variables, one of which a refusal names.

        () if one of the words is nothing that can be printed everywhere, and may be at fault.
        """
        wrong = [word for word in self.words if word not in KNOWN]
        parts = [part for word in wrong for part in re.split(r"[=,@\x00-\x1f\x7f]", word)]
        if not all(re.search("[a-zA-Z0-9]", part) and part.isascii() for part in parts):
            return ()
        named = [*map(str.strip, parts), *self.environment]
        named += [part.strip("-").replace("-", "_") for part in parts]  # as Hydra's parser does
        # Words that are right each may be wrong together.
        heads = [word.partition("=")[0] for word in self.words if word in KNOWN and "=" in word]
        named += [f"{head}{end}" for head in heads for end in "=."]
        named += [head for head in heads if "." in head]
        named += [word for word in self.words if word in KNOWN and "=" not in word]
        if self.command in ("normbench", "normbench.bench"):  # a refusal of a grid, or of one cell
            named += ["a grid", "this is one cell"]
        if not any("runs=" in word for word in self.words):
            named.append("runs=runs")  # the default
        if self.command == "normbench.prepare":
            named.append("data=digits")  # the default
        if self.command == "normbench.decide" and not any("hours=" in word for word in self.words):
            named.append("hours=H")  # which it needs
        # What -cn, -cp and -sc mean, and -m:
        named += ["--config-name", "--config-path", "--shell_completion"]
        named += [f"/{word[:2]}" for word in self.words if re.match("-[a-z]", word)]
        return tuple(filter(None, (part.lstrip("+~-")[:20] for part in named)))


def _as_word(value: Any) -> str:
    if value is None or isinstance(value, bool):
        return str(value).lower().replace("none", "null")
    return str(value).replace(" ", "").replace("'", "")


def _options() -> list[str]:
    return [
        f"{group}.{key}={_as_word(value)}"
        for group in groups()
        for name in names(CONF / group)
        for key, value in load_options(CONF / group / f"{name}.yaml").items()
        if group != "protocol"
    ]


CHOICES = [f"{group}={name}" for group in groups() for name in names(CONF / group)]
OPTIONS = sorted(set(_options()))
#: Words that a data set of digits and a small network accept.
GOOD = [
    *(f"norm={name}" for name in names(CONF / "norm")), *CHOICES,
    *(f"{key}={value}" for key, values in VALUES.items() for value in values),
]  # fmt: skip

#: Words that are right where they stand alone.
KNOWN = frozenset([*GOOD, *OPTIONS, "-m", "--dry-run"])

#: Letters of keys, those that mean something to Hydra, YAML, a shell or a terminal, and others.
LETTERS = "abnormtch01289_-=,.:;+~@$%&|!?*#/\\'\"`^(){}[]<> \n\t\r\x1b\x07\x7f\x85\x9b"
LETTERS += "äß日\u202e\u0301\udc80😀"
characters = st.one_of(st.sampled_from(LETTERS), st.sampled_from(LETTERS[:40]))
texts = st.text(characters, min_size=1, max_size=12)
strange = st.one_of(
    st.sampled_from(STRANGE), st.sampled_from(STRANGE), texts, st.integers(-9, 10**12).map(str),
    st.floats().map(str),
)  # fmt: skip


@st.composite
def mutated(draw: st.DrawFn, words: st.SearchStrategy[str]) -> str:
    """A word with letters that are missing, added, doubled, in capitals, or in other places."""
    word: str = draw(words)
    at = draw(st.integers(0, len(word)))
    kinds = {
        "missing": lambda: word[:at] + word[at + 1 :],
        "added": lambda: word[:at] + draw(st.one_of(characters, st.sampled_from("=,.+~@${}[]()'")))
        + word[at:],
        "doubled": lambda: word[:at] + word[:at] + word[at:],
        "cut": lambda: word[:at],
        "capitals": word.upper,
        "backwards": lambda: word[::-1],
        "prefix": lambda: draw(st.sampled_from(["+", "++", "~", "-", "--", "@", "/", " "])) + word,
        "suffix": lambda: word + draw(st.sampled_from([",", ",,", "=", " ", ".", "/", "@x",
        "[0]"])),
    }  # fmt: skip
    change: Callable[[], str] = kinds[draw(st.sampled_from(sorted(kinds)))]
    return change()


@st.composite
def assigned(draw: st.DrawFn, keys: Sequence[str]) -> str:
    """A key with a strange value, or with a list of values."""
    values = draw(st.lists(strange, min_size=1, max_size=2))
    return f"{draw(st.sampled_from(keys))}={','.join(values)}"


_heads = [*KEYS, *groups(), *sorted({word.partition("=")[0] for word in OPTIONS})]
good_words = st.one_of(st.sampled_from(GOOD), st.sampled_from(OPTIONS))
bad_words = st.one_of(
    assigned(_heads), assigned(_heads), assigned(_heads), mutated(good_words),
    st.sampled_from(STRANGE_WORDS), st.sampled_from(STRANGE_WORDS),
    mutated(st.sampled_from(STRANGE_WORDS)), st.tuples(texts, strange).map("=".join), texts,
)  # fmt: skip


@st.composite
def environments(draw: st.DrawFn) -> dict[str, str]:
    """No variables in most cases, or some of those that are read, with whatever value."""
    if draw(st.integers(0, 3)):
        return {}
    chosen = draw(st.lists(st.sampled_from(sorted(VARIABLES)), min_size=1, max_size=5))
    if any(name.startswith(("SLURM_", "TORCH", "RANK", "WORLD")) for name in chosen):
        prefix = "SLURM_" if any(name.startswith("SLURM_") for name in chosen) else ""
        chosen += [
            name for name in VARIABLES
            if name.startswith(prefix or ("TORCH", "RANK", "WORLD", "LOCAL", "GROUP", "MASTER"))
        ]  # fmt: skip
    plain = [each for each in STRANGE if "\0" not in each and len(each) < 10_000]
    return {
        name: draw(st.one_of(st.sampled_from(VARIABLES[name]), st.sampled_from(plain)))
        if draw(st.integers(0, 2)) == 0
        else VARIABLES[name][0]
        for name in chosen
    }


def _sprinkle(good: st.SearchStrategy[str], bad: st.SearchStrategy[str]) -> Any:
    """Up to three good words and one or two bad ones, in any order."""
    return st.tuples(
        st.lists(good, max_size=3), st.lists(bad, min_size=1, max_size=2), st.integers(0, 3)
    ).map(lambda drawn: [*drawn[0][: drawn[2]], *drawn[1], *drawn[0][drawn[2] :]])


def _with_multirun(words: st.SearchStrategy[list[str]]) -> st.SearchStrategy[list[str]]:
    return st.tuples(st.booleans(), words).map(lambda drawn: [*["-m"][: drawn[0]], *drawn[1]])


def _of(*options: str) -> st.SearchStrategy[str]:
    """Words of a command that reads key=value by itself, right and wrong ones."""
    keys = [word.partition("=")[0] for word in options]
    return st.one_of(
        st.sampled_from(options), assigned(keys), mutated(st.sampled_from(options)),
        st.sampled_from(STRANGE), st.sampled_from(STRANGE_WORDS), texts,
    )  # fmt: skip


_grid = _with_multirun(_sprinkle(good_words, bad_words))
_tables = [*names(TABLES), "batch_size", "evonorm_9,sn_1"]
_RUNS = (
    "runs=runs",
    "runs=elsewhere",
    "runs=study",
    "runs=study/rows.jsonl.gz",
    "runs=runs/default",
)
_PROBE = (
    "reports=tables", "name=stem", "ckpt=0123456789ab", "ckpt=all", "ckpt=file.pt", "runs=runs",
    "input=normal", "images=4", "image=8", "statistics=running", "eps=0", "alphas=0,1", "repeats=1",
    "mode=training", "act=relu", "act=os.system", "vs",
)  # fmt: skip
_BENCH = (
    "rounds=1", "out=times.csv", "norm=gn", "impl=eager", "peers=false", "shape=1x8x4x4",
    "act=relu", "dtype=float32", "device=cpu", "format=contiguous", "threads=1", "steps=3",
    "seeds=2,3", "against=.", "rows=10", "plans=1x1x32", "cores=1", "loaders=memory",
    "device=cuda", "impl=triton",
)  # fmt: skip
_SEARCH = (
    "first", "x*sigmoid(x)/std_g(x)", "relu(x)", "candidates=2", "strategy=random", "seed=0",
    "batch_statistics=false", "cost=reads", "min_accuracy=0", "max_gradient=1e8", "population=5",
    "tournament_share=0.5", "random_probability=1", "in_flight=2", "top=1", "baselines=gn",
    "out=report", "populaton=5", "search_seed=1",
)  # fmt: skip
_SMALL = ("data=digits", "model=resnet8", "model=resnet14", "norm=gn", "norm=bn", "batch=4")
_small = st.one_of(st.sampled_from(_SMALL), good_words)


def _after(first: Sequence[str], words: st.SearchStrategy[list[str]]) -> Any:
    """A kind or a list, which is the first word, and words; now and then the kind is wrong."""
    kinds = st.one_of(
        st.sampled_from(first), st.sampled_from(first), mutated(st.sampled_from(first))
    )
    return st.tuples(kinds, words).map(lambda drawn: [drawn[0], *drawn[1]])


_LISTS = (
    "norms",
    "models",
    "data",
    "recipes",
    "regs",
    "protocols",
    "trainers",
    "loggers",
    "sweeps",
)
_names = [name for group in groups() for name in names(CONF / group)] + names(SWEEPS)
WORDS: dict[str, st.SearchStrategy[list[str]]] = {
    "normbench": _grid,
    "normbench.status": st.lists(_of(*_RUNS, *STATES), max_size=3),
    "normbench.report": st.lists(
        _of(*_RUNS, *_tables, *_tables, "reports=tables", "study=study", "study=other"),
        min_size=1, max_size=3,
    ),
    "normbench.cost": _sprinkle(good_words, st.one_of(bad_words, _of("rate=100", "-m"))),
    "normbench.decide": st.lists(
        _of(*_RUNS, "hours=1", "claim=bn_falls", "run=true", "logger=none"), max_size=4
    ),
    "normbench.prepare": _sprinkle(good_words, st.one_of(bad_words, _of("readers=1"))),
    "normbench.catalog": _after(
        _LISTS,
        st.lists(
            st.one_of(
                st.sampled_from(_names), _of("norm=gn,bn", "classes=10", "image=32", "images=5000",
                "global_batch=128", "timm/resnet18", "resnet14", "resnet8,resnet14"),
            ),
            max_size=3,
        ),
    ),
    "normbench.probe": _after(
        [*KINDS, *names(FIGURES)],
        _sprinkle(st.one_of(_of(*_PROBE), _small), st.one_of(bad_words, _of(*_PROBE))),
    ),
    "normbench.bench": _after(
        list(bench.KINDS),
        _sprinkle(st.one_of(_of(*_BENCH), _small), st.one_of(bad_words, _of(*_BENCH))),
    ),
    "normbench.dashboard": st.lists(
        _of(*_RUNS, *_tables, "reports=boards", "project=p", "entity=e"), max_size=3
    ).map(lambda words: ["--dry-run", *words]),
    "normbench.search": _after(
        ["run", "show", "rerank", "evaluate"],
        _sprinkle(
            st.one_of(_of(*_SEARCH), _small), st.one_of(bad_words, _of("norm=gn", "sweeps=demo"))
        ),
    ),
    "normbench.studies": _after(
        ["add", "merge", "restore", "verify"],
        st.lists(
            _of(*_RUNS, "default", "other", "study", "study/rows.jsonl.gz", "study=study",
            "study=new", "prefer=last", "share=0.5", "draw=3", "jobs=2", "logger=none"),
            max_size=4,
        ),
    ),
}  # fmt: skip


def command_lines(command: str) -> st.SearchStrategy[CommandLine]:
    """Return command lines of `command`, a key of `WORDS`."""
    return st.builds(
        CommandLine, st.just(command), WORDS[command].map(_without_nul), environments(),
        st.sampled_from(ENCODINGS),
    )  # fmt: skip


def _without_nul(words: list[str]) -> tuple[str, ...]:
    """No shell and no kernel passes a NUL, and of surrogates only those of undecodable bytes."""
    return tuple(
        "".join(
            c
            if c != "\0" and not 0xD800 <= ord(c) < 0xDC80 and not 0xDCFF < ord(c) <= 0xDFFF
            else "?"
            for c in word
        )
        for word in words
    )
