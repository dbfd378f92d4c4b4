"""The rules that decide whether a model trains, from its facts.

The thresholds were chosen on 226 small models that were trained with SGD and with Adam at seven
rates each: a rule is here if it fires on models that did not train, and on few others.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from bnmc._support.text import Result
from bnmc.torch.facts import Facts

#: From best to worst.
_ANSWERS = ("trains", "undecided", "late", "no")

#: The same in a verdict.
_WORDS = {
    "trains": "trains", "undecided": "may not train", "late": "starts late", "no": "does not train",
}  # fmt: skip

#: The rules, causes before their effects.
_CAUSES = (
    "dead", "inputs", "softmax", "clones", "growth", "loss", "overflow", "fall", "lost",
    "signal", "samples", "outputs", "norm", "slow",
)  # fmt: skip

#: A loss below this part of the chance is that of a trained model.
_TRAINED = 0.5

#: Twenty steps that never lower the loss to this part of the chance fail.
_FALLS = 0.8

#: An answer that this share of the draws has is that of all.
_AGREE = 7 / 8

#: The end of a verdict without a loss.
NO_LOSS = "Labels or a loss give an outlook."

#: The name of ∂L/∂h in all texts.
_OF_STATES = "gradients of activations"

#: Before the verdict of a model that was measured in eval mode, and the first cure.
_EVAL = "The model is in eval mode: batch norms use running statistics. "
_TRAIN = "model.train(), and measure again"

#: The cure of gradients that fall or grow, of all models.
_SCALED = "a norm, or skip connections"

#: Facts of other draws of the weights differ by less than this factor, mostly.
_NEAR = 3.0


class Fault(NamedTuple):
    """A rule that fires.

    sgd, adam : str
        The outlook: "late", "no" or "undecided".
    cure : str
        What to try.
    rule : str
        Name of the rule.
    text : str
        What is wrong, with the number.
    """

    rule: str
    sgd: str
    adam: str
    text: str
    cure: str


@dataclass(frozen=True)
class Outlook(Result):
    """Whether a model trains in its first hundreds of steps, by optimizer.

    Attributes
    ----------
    sgd, adam : {"trains", "late", "no", "undecided"}
        SGD without momentum, and Adam, at their best rates. "late": it starts, but not in the first
        hundreds of steps. "undecided" without a loss, or if draws of the weights disagree: fewer
        than 7 of 8 have one answer.
    wrong : tuple of str
        The rules that fire, in sentences, the worst first.
    beside : tuple of str
        What is worth a mention, and no fault.
    cures : tuple of str
        What to try, in the order of `wrong`; in eval mode, ``model.train()`` first.

    Examples
    --------
    >>> import torch
    >>> from torch import nn
    >>> from bnmc.torch import measure
    >>> seed = torch.manual_seed(0)
    >>> layers = [part for _ in range(20) for part in (nn.Linear(32, 32), nn.ReLU())]
    >>> model = nn.Sequential(*layers, nn.Linear(32, 4))
    >>> outlook = measure(model, torch.randn(16, 32), labels=torch.arange(16) % 4).outlook
    >>> outlook.sgd, outlook.adam, outlook.cures[0]
    ('no', 'late', 'bnmc.torch.gain_for_(model), a norm, or skip connections')
    """

    sgd: str
    adam: str
    wrong: tuple[str, ...] = ()
    beside: tuple[str, ...] = ()
    cures: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Return the fields, for JSON."""
        return {
            "sgd": self.sgd, "adam": self.adam, "wrong": list(self.wrong),
            "beside": list(self.beside), "cures": list(self.cures),
        }  # fmt: skip


def outlook_of(
    draws: Sequence[Facts], fall: float | None = None, after: Facts | None = None
) -> Outlook:
    """Return the outlook of networks of one model.

    Parameters
    ----------
    draws : sequence of Facts
        Of each network. A rule that fires in fewer than half of them is no more than a mention.
    fall : float, optional
        The loss after twenty steps of Adam at the best rate, over the chance. It decides what the
        facts leave undecided.
    after : Facts, optional
        Those after these steps. Adam does not train if the facts before and after say that it does
        not, or not soon, and the loss does not fall.
    """
    faults: dict[str, list[Fault]] = {}
    for facts in draws:
        for fault in faults_of(facts):
            faults.setdefault(fault.rule, []).append(fault)
    first = draws[0]
    sgd, adam = map(_agreed, zip(*map(_answers_of, draws), strict=True))
    wrong, cures, beside = [], [], list(_mentions(first))
    ordered = sorted(faults.values(), key=lambda each: _rank(each[0]))
    for fired in ordered:
        fault, count = fired[0], len(fired)
        text = fault.text if count == len(draws) else _of_draws(fault.text, count, len(draws))
        if 2 * count < len(draws):
            beside.append(text)
            continue
        wrong.append(text)
        cures.append(fault.cure)
    if wrong and _is_untrained_in_eval(first):
        cures.insert(0, _TRAIN)
    stays = after is not None and "trains" not in (adam, _answers_of(after)[1])
    if stays and fall is not None and fall >= _FALLS:
        adam = "no"
    if adam == "undecided" and fall is not None and fall < _TRAINED:
        adam = "trains"
    if fall is not None:
        beside.append(f"20 steps of Adam lower the loss to {fall:.2g} of chance at the best rate")
    return Outlook(sgd, adam, tuple(wrong), tuple(beside), tuple(dict.fromkeys(cures)))


def _of_draws(text: str, count: int, draws: int) -> str:
    """Return the text of a fault of some draws; its bracket has the numbers of the first one."""
    share = f"in {count} of {draws} draws of the weights"
    head, bracket, numbers = text.partition(" (")
    if not bracket:
        return f"{text} ({share})"
    return f"{head} ({share}; {numbers.removesuffix(')')} in the first of these)"


def _is_untrained_in_eval(facts: Facts) -> bool:
    """Whether an untrained model is in eval mode, so that its facts are not those of training."""
    return facts.running_statistics and not facts.loss < _TRAINED * facts.chance


def _rank(fault: Fault) -> tuple[int, int]:
    """Return the place of a fault in the verdict: the worst first, causes before effects."""
    return -_ANSWERS.index(fault.sgd), _CAUSES.index(fault.rule)


def _answers_of(facts: Facts) -> tuple[str, str]:
    """Return the outlook of one network, for SGD and for Adam: the worst of its faults."""
    faults = faults_of(facts)
    start = "trains" if facts.trainable else "undecided"
    sgd = max((start, *(fault.sgd for fault in faults)), key=_ANSWERS.index)
    return sgd, max((start, *(fault.adam for fault in faults)), key=_ANSWERS.index)


def _agreed(answers: Sequence[str]) -> str:
    """Return the answer of nearly all draws, the milder one if all are bad, or "undecided"."""
    (answer, count), *_ = Counter(answers).most_common(1)
    if count >= _AGREE * len(answers):
        return answer
    return "late" if {*answers} == {"late", "no"} else "undecided"


def is_doubtful(facts: Facts) -> bool:
    """Whether one fact that differs by a factor of 3 would change the outlook.

    A trained model is not doubtful: other draws of its weights say nothing.
    """
    if facts.loss < _TRAINED * facts.chance:
        return False
    answers = _answers_of(facts)
    for factor in (1.0 / _NEAR, _NEAR):
        others = {
            "state_gradient_ratio": facts.state_gradient_ratio * factor,
            "effective_rank": 1.0 + (facts.effective_rank - 1.0) * factor,
            "last_correlation": 1.0 - (1.0 - facts.last_correlation) * factor,
            "output_spread": facts.output_spread * factor,
            "least_live_units": facts.least_live_units * factor,
            "loss": facts.loss * factor,
        }
        for name, value in others.items():
            if name == "loss" and value < facts.chance:
                continue
            changed: dict[str, Any] = {name: value}
            if _answers_of(replace(facts, **changed)) != answers:
                return True
    return False


def faults_of(facts: Facts) -> list[Fault]:
    """Return the rules that fire for a network."""
    faults = [*_of_units(facts), *_of_norms(facts)]
    if facts.overflow:
        cure = "float32 or bfloat16 in place of float16, another gain, or a norm"
        faults.append(Fault("overflow", "no", "no", facts.overflow, cure))
    if facts.loss < _TRAINED * facts.chance:
        return faults  # a trained model: its gradients and its samples may be anything
    faults += _of_samples(facts)
    return [*faults, *_of_gradients(facts), *_of_loss(facts)] if facts.trainable else faults


def _of_gradients(facts: Facts) -> list[Fault]:
    faults = []
    cure_of_scale = f"bnmc.torch.gain_for_(model), {_SCALED}" if facts.takes_gain else _SCALED
    if facts.without_signal >= 0.45:
        share = f"{100 * facts.without_signal:.0f} %"
        faults.append(Fault(
            "signal", "no", "late" if facts.small_gradients > 0.25 else "trains",
            f"{share} of the weight matrices have gradient norms below 1e-6 of their own norm",
            cure_of_scale,
        ))  # fmt: skip
    ratio = facts.state_gradient_ratio
    of_blocks = _of_blocks(facts, with_rate=True)
    if ratio < 1 / 50:
        text = f"{_OF_STATES} fall to {of_blocks}"
        faults.append(Fault("fall", "no", "late", text, cure_of_scale))
    if ratio > 200:
        answers = ("no", "undecided") if ratio > 1e4 else ("undecided", "undecided")
        # Batch norm keeps the scale of states, whatever the gain: its gradients grow by its rate.
        has_batch_norm = not math.isnan(facts.numbers_per_channel)
        cure = "ELU or SELU, skip connections, or fewer layers" if has_batch_norm else cure_of_scale
        text = f"{_OF_STATES} grow {of_blocks}"
        faults.append(Fault("growth", *answers, text, cure))
    if facts.lost > 0.9:
        faults.append(Fault("lost", "no", "no", _lost(facts), "loss scaling, or bfloat16"))
    if facts.clones > 0.85:
        # Training keeps equal units equal. If a few units differ, Adam trains.
        share = f"{100 * facts.clones:.0f} %"
        faults.append(Fault(
            "clones", "no", "no" if facts.clones == 1.0 else "late",
            f"{share} of the units of a layer are equal, with equal gradients", "a new draw",
        ))  # fmt: skip
    return faults


def asks_for_gain(facts: Facts) -> bool:
    """Whether a rule fires that a gain may cure."""
    return any(fault.cure == _SCALED for fault in faults_of(facts))


def _of_blocks(facts: Facts, *, with_rate: bool) -> str:
    """Return the ratio of gradients of activations with its blocks, and where it is not even."""
    rate, bend = facts.state_gradient_rate, facts.state_gradient_bend
    text, parts = "the last block to the first", []
    if facts.state_gradient_span:
        last, first, share = facts.state_gradient_span
        text, parts = f"block {last!r} to {first!r}", [share]
    if with_rate:
        parts += [] if math.isnan(rate) else [f"squared: ×{rate:.3g} per block"]
        parts += [f"most at {bend!r}"] if bend else []
    beside = f" ({'; '.join(parts)})" if parts else ""
    return f"×{factor(facts.state_gradient_ratio)} from {text}{beside}"


def _lost(facts: Facts) -> str:
    return f"{100 * facts.lost:.0f} % of the gradients are below the smallest float16 number"


def _of_loss(facts: Facts) -> list[Fault]:
    faults = []
    ratio = facts.loss / facts.chance
    if ratio > facts.most_of_chance:
        text = f"the loss {facts.loss:.3g} is ×{ratio:.3g} of chance ({facts.chance:.3g})"
        cure = "a smaller last layer, or standardized targets"
        faults.append(Fault("loss", "no", "late", text, cure))
    if facts.probabilities:
        faults.append(Fault(
            "softmax", "no", "no", "outputs are probabilities before a cross-entropy, which takes "
            "logits", "no softmax at the end",
        ))  # fmt: skip
    return faults


def _of_samples(facts: Facts) -> list[Fault]:
    faults = []
    cosine, rank = facts.last_correlation, facts.effective_rank
    cure = "skip connections, another activation, or an orthogonal start"
    if facts.input_correlation > 0.99 and facts.first_correlation > 0.99:
        faults.append(Fault(
            "inputs", "no", "late",
            f"inputs are nearly parallel (mean cosine {facts.input_correlation:.4g})",
            "standardized inputs, or a norm first",
        ))  # fmt: skip
    if rank < 1.5 or 1.0 - cosine < 3e-4:
        text = f"samples are parallel after the last block (effective rank {rank:.3g}, mean cosine "
        faults.append(Fault("samples", "no", "late", f"{text}{cosine:.4g})", cure))
    elif facts.output_spread < 1e-3 and not facts.zero_head:
        text = (
            f"outputs hardly differ between samples (standard deviation {facts.output_spread:.2g})"
        )
        faults.append(Fault("outputs", "no", "late", text, cure))
    elif cosine > 0.99:
        text = f"samples are nearly parallel after the last block (mean cosine {cosine:.4g})"
        faults.append(Fault("slow", "late", "trains", text, cure))
    return faults


def _of_units(facts: Facts) -> list[Fault]:
    cure = "other biases, another gain, or LeakyReLU"
    if facts.all_dead:
        return [Fault("dead", "no", "no", "all units of a layer are zero for all samples", cure)]
    if facts.least_live_units <= 2:
        count = f"{facts.least_live_units:.0f} unit{'s'[: facts.least_live_units > 1]}"
        text = f"only {count} of a layer can be above zero: the others are zero for all samples"
        return [Fault("dead", "no", "trains", text, cure)]
    return []


def _of_norms(facts: Facts) -> list[Fault]:
    if not facts.numbers_per_channel <= 2:
        return []
    text = "batch normalization of 2 numbers returns −1 and 1, whatever they are"
    return [Fault("norm", "late", "late", text, "larger batches, or GroupNorm")]


def _mentions(facts: Facts) -> list[str]:
    """Return what is no fault, and worth a mention."""
    beside = []
    ratio = facts.loss / facts.chance
    if 1.5 < ratio <= facts.most_of_chance:
        beside.append(
            f"the loss {facts.loss:.3g} is ×{ratio:.2g} of chance, which asks SGD for a lower rate "
            "or a smaller last layer"
        )
    if 2 < facts.numbers_per_channel < 16:
        beside.append(
            f"batch normalization takes its statistics over {facts.numbers_per_channel:.0f} "
            "numbers, so results in evaluation mode may differ"
        )
    if 0.01 < facts.lost <= 0.9:
        beside.append(f"{_lost(facts)}, which asks for loss scaling, or bfloat16")
    if facts.trainable and facts.without_gradient:
        names = ", ".join(map(repr, facts.without_gradient[:3]))
        more = len(facts.without_gradient) - 3
        tail = f" and {more} more" if more > 0 else ""
        zero = " (a factor after them is zero, and moves first)" if facts.zero_by_design else ""
        beside.append(f"no gradient reaches {names}{tail}{zero}")
    if facts.measured_share < 0.5:
        share = f"{100 * facts.measured_share:.0f} %"
        beside.append(f"measured layers hold {share} of the parameters")
    return beside


def said(
    outlook: Outlook, facts: Facts, rows: str, cure: str = "", fall: float | None = None
) -> str:
    """Return the verdict: at most three sentences, what is wrong first; eval mode has one more."""
    mode = _EVAL if _is_untrained_in_eval(facts) else ""
    if outlook.wrong:
        wrong = ", and ".join(outlook.wrong[:2])
        numbers = _numbers(facts, rows, wrong, fall)
        head = f"{_answer(outlook)}: {wrong}."
        return f"{mode}{head} {numbers[0].upper()}{numbers[1:]}. Try {cure or outlook.cures[0]}."
    normal = _numbers(facts, rows)
    beside = f" Note: {outlook.beside[0]}." if outlook.beside else ""
    if not facts.trainable:
        return f"{mode}Nothing found in the forward pass: {normal}. {NO_LOSS}"
    if facts.loss < _TRAINED * facts.chance:
        return f"A trained model: {normal}.{beside}"
    return f"{mode}Nothing found that stops training: {normal}.{beside}"


def is_cured(before: Facts, after: Facts) -> bool:
    """Whether a change of a model improves its outlook, and breaks no rule that it kept."""
    answers, others = _answers_of(before), _answers_of(after)
    pairs = list(zip(map(_ANSWERS.index, answers), map(_ANSWERS.index, others), strict=True))
    rules = [{fault.rule for fault in faults_of(facts)} for facts in (before, after)]
    return all(b <= a for a, b in pairs) and answers != others and rules[1] <= rules[0]


def distance_from_healthy(facts: Facts) -> float:
    """Return how far a model is from a healthy one; less of two cures is better.

    Gradients of states change with depth, the loss is far from chance, or the rank is small.
    """
    logs = [math.log(max(facts.state_gradient_ratio, 1e-300)), math.log(facts.loss / facts.chance)]
    far = sum(abs(log) for log in logs if not math.isnan(log))
    return far - math.log(max(facts.effective_rank, 1.0))


def compared(name: str, before: Facts, after: Facts) -> str:
    """Return what a cure that was tried does, with the numbers before and after."""
    (sgd, adam), (then, others) = _answers_of(before), _answers_of(after)
    return (
        f"{name} (tried on this model: SGD {_WORDS[sgd]} → {_WORDS[then]}, Adam {_WORDS[adam]} → "
        f"{_WORDS[others]}; loss "
        f"{before.loss:.3g} → {after.loss:.3g}; {_OF_STATES} "
        f"×{factor(before.state_gradient_ratio)} → ×{factor(after.state_gradient_ratio)}; "
        f"effective rank {before.effective_rank:.3g} → {after.effective_rank:.3g})"
    )


def _answer(outlook: Outlook) -> str:
    return f"SGD {_WORDS[outlook.sgd]}, Adam {_WORDS[outlook.adam]}"


def _numbers(facts: Facts, rows: str, wrong: str = "", fall: float | None = None) -> str:
    """Return the numbers of a verdict that its faults have not named."""
    parts = []
    if facts.trainable:
        chance = [] if math.isnan(facts.chance) else [f"chance {facts.chance:.3g}"]
        chance += [] if fall is None else [f"20 steps of Adam reach {fall:.2g} of it"]
        beside = f" ({'; '.join(chance)})" if chance else ""
        parts.append(f"loss {facts.loss:.3g}{beside}")
        if not (math.isnan(facts.state_gradient_ratio) or _OF_STATES in wrong):
            parts.append(f"{_OF_STATES} {_of_blocks(facts, with_rate=False)}")
    parts.append(f"effective rank of the {rows} {facts.effective_rank:.3g} in the last block")
    return "; ".join(parts)


def factor(value: float) -> str:
    """Return a factor to two digits, with an exponent from a million on."""
    return f"{float(f'{value:.2g}'):g}"
