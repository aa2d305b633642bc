"""Associative recall over a distance: sequences in which every key is given a value once, among filler of the same
keys and values, and is asked for at the end.

A token is (mark, key, value). A PAIR's key has that value; a FILLER's key and value mean nothing; a QUESTION has a key
and no value, and its answer is the value of the pair with that key. Only its mark tells a pair from filler. Keys,
values and places are drawn anew for every sequence, so that nothing can be learnt by heart, and values are drawn each
on its own: whoever has not seen the pair is right once in VALUES times, whatever else he knows.
"""
import functools

import torch

from liblasp.torch import shard_bounds

KEYS = VALUES = 32
CHANCE = 1 / VALUES
SHORTEST = 2 * KEYS  # tokens: pairs and questions, no filler
OCTAVES = 24         # of distances
LONGEST = 1 << OCTAVES  # what torch.multinomial draws from
PAIR, FILLER, QUESTION = range(3)
NO_VALUE = VALUES  # of a question
VOCABULARY = 3 + KEYS + VALUES + 1  # marks, keys, values, no value: one table of embeddings
NO_ANSWER = -1     # of a token that is no question


def lengths(tokens):
    """The stages of training: from the shortest sequence to one of `tokens`, four times as long each time."""
    stages = [SHORTEST]
    while stages[-1] < tokens:
        stages.append(min(4 * stages[-1], tokens))
    return stages


@functools.lru_cache
def pieces(tokens, segment, ranks, device):
    """The segment in time, and the rank, of each token, as time_segments cuts a sequence: [2, T]."""
    where = torch.empty(2, tokens, dtype=torch.long, device=device)
    for begin in range(0, tokens, segment):
        length = min(segment, tokens - begin)
        where[0, begin:begin + length] = begin // segment
        for rank in range(ranks):
            first, end = shard_bounds(length, rank, ranks)
            where[1, begin + first:begin + end] = rank
    return where


def draw(generator, batch, tokens, piece):
    """Sequences [B, T, 3]; the answers [B, T]; and what is known of each question [B, T, 3]: the distance to its pair
    in tokens, whether that is in another segment, whether it is on another rank. All of it is on the generator's
    device. `piece`: of pieces()."""
    first, device = tokens - KEYS, generator.device  # the first question
    where = _places(generator, batch, first)
    keys = torch.randint(KEYS, (batch, tokens), generator=generator, device=device)
    values = torch.randint(VALUES, (batch, tokens), generator=generator, device=device)
    marks = torch.full((batch, tokens), FILLER, device=device)
    marks.scatter_(1, where, PAIR)
    keys.scatter_(1, where, _permutations(generator, batch))
    marks[:, first:] = QUESTION
    keys[:, first:] = _permutations(generator, batch)
    # The pair of each question: by key, where it is.
    of_key = torch.empty_like(where).scatter_(1, keys.gather(1, where), where)
    pair = of_key.gather(1, keys[:, first:])
    answers = torch.full((batch, tokens), NO_ANSWER, device=device)
    answers[:, first:] = values.gather(1, pair)
    values[:, first:] = NO_VALUE
    question = torch.arange(first, tokens, device=device)
    known = torch.zeros(batch, tokens, 3, dtype=torch.long, device=device)
    known[:, first:] = torch.stack([question - pair, *(piece[:, pair] != piece[:, None, question])], -1)
    return torch.stack([marks, 3 + keys, 3 + KEYS + values], -1), answers, known


def _places(generator, batch, tokens):
    """KEYS places out of the first `tokens`: about half of them in the first quarter, half of them at distances whose
    logarithms are spread evenly, so that every distance is asked for."""
    distance = torch.arange(tokens, 0, -1, dtype=torch.float32, device=generator.device)
    quarter = max(1, tokens // 4)
    weight = 1 / distance / (1 / distance).sum()
    weight[:quarter] += 1 / quarter
    return torch.multinomial(weight.expand(batch, -1), KEYS, generator=generator)


def _permutations(generator, batch):
    return torch.rand(batch, KEYS, generator=generator, device=generator.device).argsort(1)
