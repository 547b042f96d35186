"""Made-up proper names: nobody knows anything about them, and no tokenizer has them as one token."""

import random
from collections.abc import Sequence

SYLLABLES = (
    "ba", "be", "bo", "da", "de", "do", "fa", "fe", "ga", "go", "ka", "ke", "ko", "la", "le", "lo", "ma", "me", "mi",
    "mo", "na", "ne", "ni", "no", "pa", "pe", "po", "ra", "re", "ri", "ro", "sa", "se", "so", "ta", "te", "to", "va",
    "ve", "vo",
)  # fmt: skip
ENDS = ("n", "l", "r", "s", "m", "k", "x", "rd", "lt", "nd", "sk", "th")


def name(rng: random.Random, syllables: int = 3) -> str:
    """A name such as Velomard; one of some 770,000 of three syllables."""
    text = "".join(rng.choice(SYLLABLES) for _ in range(syllables)) + rng.choice(ENDS)
    return text.capitalize()


def names(rng: random.Random, count: int, syllables: int = 3, but: Sequence[str] = ()) -> list[str]:
    """Different names, none of `but`."""
    found = dict.fromkeys(but)
    while len(found) < len(set(but)) + count:
        found.setdefault(name(rng, syllables))
    return list(found)[len(set(but)) :]


_WORDS = """
anchor apple apron arrow autumn bacon badge balcony bamboo banana barrel basket beach bean bell bench berry bird
blanket blossom board boat bone book boot bottle bowl box branch brass bread brick bridge broom bucket bull butter
button cabbage cabin cable cactus cake camel candle canoe canyon carpet carrot castle cave cedar cellar chain chair
chalk cheese cherry chess chicken chimney church circle clay cliff clock cloud clover coal coat coffee coin copper
coral corn cotton cradle crane creek cricket crown crystal cup curtain daisy dawn deer desert diamond dolphin donkey
door dragon drum duck dust eagle engine envelope falcon farm feather fence fern ferry field finger fire flag flame
flood flour flower flute fog forest fork fountain fox frog frost fruit garden garlic gate ghost giant ginger glacier
glass globe glove goat gold goose grain grape grass gravel guitar hammer harbor harp hat hawk hazel helmet hen herb
hill honey hook horn horse hotel island ivory jacket jar jewel juice jungle kettle key kitchen kite knife ladder lake
lamp lantern leaf leather lemon letter library lily lime linen lion lizard lobster lock log magnet mango map maple
marble market mask meadow melon metal milk mill mint mirror monkey moon mosque moss mountain mouse mud museum mushroom
nail needle nest nickel night noodle north nurse oak oasis ocean olive onion orange orchard orchid otter oven owl
oyster paddle paint palace palm panda paper parrot path peach peanut pearl pebble pencil pepper piano pigeon pillow
pilot pine pipe planet plate plum pocket poet pond pony potato prince pumpkin puppet puzzle queen quilt rabbit radio
rail rain ranch raven ribbon rice ring river robin rocket roof rope rose ruby rug saddle sail salad salmon salt sand
satin scarf school scissors seal seed shadow shark sheep shell ship shirt shoe shovel signal silk silver sister ski
sky slope smoke snail snake snow soap sock soup spider spoon spring square stable stairs star station steam steel
stone storm stove straw street sugar summer sun swan sword table tailor tank teapot temple tent thread throne thunder
tiger timber tin toast tobacco tomato torch tower town toy tractor train treasure tree trumpet tulip tunnel turkey
turtle umbrella valley vase velvet village vine violin wagon wall walnut water wave whale wheat wheel whistle willow
window wine winter wolf wood wool yarn zebra
"""
WORDS = tuple(_WORDS.split())
"""Everyday nouns, none twice."""
