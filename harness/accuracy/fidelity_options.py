"""How much forced decode, greedy continuation and repetition a launch gets. Schema of `scenario.fidelity`."""

from dataclasses import dataclass

from harness.errors import ConfigError


@dataclass
class FidelityOptions:
    """Sizes of the output check and of the fidelity measurements.

    Attributes
    ----------
    texts : int
        Texts of the forced decode; the first goes deep into the context, the others are short.
    positions : int
        Positions of each text at which the next token's distribution is read.
    greedy_prompts, greedy_tokens : int
        Greedy continuations compared with the 16-bit launch's, and tokens of each; no prompts: none.
    repeats : int
        How often a request is repeated, alone and beside others, to see whether the output stays the same; 0: never.
    """

    texts: int = 2
    positions: int = 40
    greedy_prompts: int = 4
    greedy_tokens: int = 32
    repeats: int = 3

    def __post_init__(self) -> None:
        least = {"texts": 1, "positions": 8, "greedy_prompts": 0, "greedy_tokens": 1, "repeats": 0}
        for key, value in least.items():
            if getattr(self, key) < value:
                raise ConfigError(f"fidelity.{key}: {getattr(self, key)} must be >= {value}")
