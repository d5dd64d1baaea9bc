"""What Tensor2Tensor would call of a model or a problem, tried in one process; prints what came out as JSON.

A program of its own, because TensorFlow is not imported into the process of the tests.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from transient_magics.errors import TransientError
from transient_magics.protocol.run import RunSpec
from transient_magics.runtime.training.t2t import bridges

tf = bridges.cross()

from tensor2tensor.data_generators import multi_problem, multi_problem_v2, problem  # noqa: E402
from tensor2tensor.layers import modalities  # noqa: E402
from tensor2tensor.models import basic  # noqa: E402
from tensor2tensor.utils import learning_rate, optimize, t2t_model  # noqa: E402

from transient_magics.runtime.tf.placement import placed  # noqa: E402
from transient_magics.runtime.training.graph.step import (  # noqa: E402
    Accumulators,
    applied,
    pushed,
)
from transient_magics.runtime.training.t2t import optimizer, registry  # noqa: E402
from transient_magics.runtime.training.t2t import trainable as t2t_graph  # noqa: E402
from transient_magics.runtime.training.trainable import Objective  # noqa: E402

SPEC = RunSpec("run-1", 1000, "m", "basic_fc_small", "p")
TRAIN = tf.estimator.ModeKeys.TRAIN


class Plain(t2t_model.T2TModel):
    """Nothing but what it must have."""


class Halved(Plain):
    def optimize(self, loss: Any, num_async_replicas: int = 1, use_tpu: bool = False, variables: Any = None) -> Any:
        rate = 0.5 * learning_rate.learning_rate_schedule(self.hparams)
        top = [variable for variable in tf.trainable_variables() if "top" in variable.name]
        return optimize.optimize(2 * loss, rate, self.hparams, variables=top)


class Twice(Plain):
    def optimize(self, loss: Any, *given: Any, **named: Any) -> Any:
        super().optimize(loss)
        return super().optimize(loss)


class Averaged(Plain):
    def optimize(self, loss: Any, *given: Any, **named: Any) -> Any:
        return tf.group(super().optimize(loss), tf.no_op())


class Hooked(Plain):
    @staticmethod
    def train_hooks(hook_context: Any) -> list[Any]:
        return [hook_context]


class Estimated(Plain):
    @classmethod
    def estimator_model_fn(cls, *given: Any, **named: Any) -> Any:
        return super().estimator_model_fn(*given, **named)


class Numbers(problem.Problem):
    name = "numbers"


class Fed(Numbers):
    def input_fn(self, *given: Any, **named: Any) -> Any:
        return super().input_fn(*given, **named)


class Mixed(multi_problem.MultiProblem):
    name = "mixed"


class MixedAnew(multi_problem_v2.MultiProblemV2):
    name = "mixed_anew"


class Unmeasured(Numbers):
    def hparams(self, defaults: Any, model_hparams: Any) -> None:
        defaults.modality, defaults.vocab_size = {"targets": modalities.ModalityType.IDENTITY}, {"targets": None}

    def eval_metrics(self) -> list[Any]:
        return []


class Reader(Plain):
    """Its loss tells whether it was evaluated with the targets before it, or went on from what it wrote itself."""

    def __call__(self, features: Any) -> Any:
        return features["targets"], {"training": tf.constant(1.0)}

    def eval_autoregressive(self, features: Any = None, decode_length: int = 50) -> Any:
        return features["targets"], {"training": tf.constant(2.0)}


def said(work: Callable[[], Any]) -> str:
    """What it was refused with; empty: it was not."""
    try:
        work()
    except TransientError as error:
        return str(error)
    return ""


def hparams(**values: Any) -> Any:
    made = basic.basic_fc_small()
    for name, value in values.items():
        made.set_hparam(name, value)
    return made


def refusals() -> dict[str, str]:
    def check(model: type = Plain, of: type = Numbers, spec: RunSpec = SPEC, **values: Any) -> str:
        return said(lambda: registry.check_supported(model, hparams(**values), object.__new__(of), spec))

    sharded = RunSpec("run-1", 1000, "m", "basic_fc_small", "p", ps_shards=2)
    return {
        "nothing": check(),
        "train_hooks": check(Hooked),
        "estimator_model_fn": check(Estimated),
        "input_fn": check(of=Fed),
        "MultiProblem": check(of=Mixed),
        "MultiProblemV2": check(of=MixedAnew),
        "warm_start_from_second": check(warm_start_from_second="/somewhere"),
        "scaler": check(mixed_precision_optimizer_loss_scaler="linear"),
        "adafactor": check(optimizer="adafactor", spec=sharded),
        "adafactor whole": check(optimizer="adafactor"),
        "ae": check(registry.find("model", "transformer_ae")),
        "nas": check(registry.find("model", "nas_seq2_seq")),
    }


def asked(kind: type, **values: Any) -> dict[str, Any]:
    """What the model asks optimize for, at step 10,000."""
    with tf.Graph().as_default(), tf.Session() as session:
        step = tf.train.get_or_create_global_step()
        tf.get_variable("body/a", []), tf.get_variable("top/b", [])
        found = optimizer.optimize_request(kind(hparams(**values), TRAIN), tf.constant(3.0))
        session.run(step.initializer)
        session.run(step.assign(10_000))
        loss, rate = session.run([found.loss, found.rate])
    return {"loss": float(loss), "rate": float(rate), "variables": [each.op.name for each in found.variables]}


def flow_prior() -> list[float]:
    """The learning rate of transformer_vae_flow_prior at step 10,000: as it asks for it, and as the others would."""
    model, chosen = registry.find("model", "transformer_vae_flow_prior"), registry.find("hparams", "wmt_diag_small")
    with tf.Graph().as_default(), tf.Session() as session:
        step = tf.train.get_or_create_global_step()
        found = optimizer.optimize_request(model(chosen, TRAIN), tf.constant(3.0))
        session.run(step.initializer)
        session.run(step.assign(10_000))
        return [float(each) for each in session.run([found.rate, learning_rate.learning_rate_schedule(chosen)])]


def noise() -> dict[str, Any]:
    """By how much a variable of the body moves whose gradient is 0: of pushes, of a step of two workers, of one."""
    with tf.Graph().as_default(), tf.Session() as session:
        step, given = tf.train.get_or_create_global_step(), hparams(weight_noise=1e4, clip_grad_norm=0.0)
        given.optimizer = "sgd"
        variable = tf.get_variable("m/body/weights", [1000], initializer=tf.zeros_initializer())
        wanted = optimizer.Request(tf.reduce_sum(variable) * 0.0, tf.constant(1.0), given, [variable])
        total, made, pairs = optimizer.gradients(wanted, wanted.rate)
        objective = Objective(
            total, pairs, made, lambda given: given, lambda by: made, 1.0,
            lambda: optimizer.weight_noise(given, wanted.rate),
        )  # fmt: skip
        accumulators = Accumulators([variable], step)
        push = accumulators.push([(pairs[0][0], variable)], tf.constant(1.0))
        accumulators.build_update(objective)
        alone = applied(objective, step, tf.constant(1.0))
        session.run(tf.global_variables_initializer())
        accumulators.open(session)
        found, feeds = {}, {accumulators.round: session.run(accumulators.position)[0], accumulators.needed: 2}
        for name, work in (("pushes", [push]), ("push", [push]), ("update", accumulators.update), ("alone", alone)):
            before = session.run(variable)
            session.run([total, work], feeds)
            found[name] = float((session.run(variable) - before).std())
        return found


def sparse_noise() -> list[float]:
    """What noise adds to the gradient of a table of which one row was used."""
    with tf.Graph().as_default(), tf.Session() as session:
        table = tf.get_variable("table", [5, 100])
        gradient = tf.gradients(tf.reduce_sum(tf.gather(table, [2])), [table])[0]
        pairs = optimizer.noisy_and_clipped([(gradient, table)], hparams(grad_noise_scale=0.5, clip_grad_norm=0.0))
        return [float(row.std()) for row in session.run(pairs[0][0])]


def scaled(damped: bool) -> dict[str, Any]:
    """Steps in mixed precision: a gradient that is too small for float16, two that are not finite, many that are."""
    with tf.Graph().as_default(), tf.Session() as session:
        step = tf.train.get_or_create_global_step()
        given = hparams(activation_dtype="float16", optimizer="adam", clip_grad_norm=0.0)
        factor = tf.placeholder_with_default(1.0, [])
        weights = tf.get_variable("weights", [4], initializer=tf.ones_initializer())
        small = tf.cast(tf.cast(weights, tf.float16) * 1e-4, tf.float32) * 1e-4 * factor
        asked = optimizer.Request(tf.reduce_sum(small), tf.constant(0.5), given, [weights])
        total, made, pairs = optimizer.gradients(asked, asked.rate)
        objective = Objective(
            total, pairs, made, lambda given: given, lambda by: optimizer.optimizer(given, asked.rate / by), 1.0
        )
        train = applied(objective, step, tf.constant(1.0), began=tf.identity(step.read_value()) if damped else None)
        scale, *counts = [each for each in tf.global_variables() if "loss_scale" in each.name]
        session.run(tf.global_variables_initializer())
        gradient, found = float(session.run(pairs[0][0])[0]), [session.run([scale, weights[0]])]
        for value in (float("inf"), float("nan"), 1.0):
            session.run(train, {factor: value})
            found.append(session.run([scale, weights[0]]))
        session.run(counts[0].assign(1999.0))
        session.run(train)
        found.append(session.run([scale, weights[0]]))
        return {"gradient": gradient, "steps": [list(map(float, each)) for each in found]}


def scaled_rounds() -> dict[str, Any]:
    """Synchronous steps in mixed precision: a worker and the chief, each with a graph and a session of its own.

    Rounds of two pushes: of one that is not finite, of two, of none, and of none when the scale is about to grow.
    """
    target = tf.train.Server.create_local_server().target
    with tf.Graph().as_default(), tf.Session(target) as session:
        factor = tf.placeholder_with_default(1.0, [])
        objective, accumulators = halves(factor)
        push = pushed(objective, accumulators, "fp32")
        with tf.Graph().as_default(), tf.Session(target) as chief:
            objective, ends = halves(tf.constant(1.0))
            ends.build_update(objective)
            scale, good, _ = [each for each in tf.global_variables() if "loss_scale" in each.name]
            looked, soon = [scale, *(variable[0] for _, variable in objective.pairs)], good.assign(1999.0)
            chief.run(tf.global_variables_initializer())
            ends.open(chief)
            steps, found = [], []
            for factors in ((1.0, float("inf")), (float("nan"), float("inf")), (1.0, 3.0), (2.0, 2.0)):
                number = session.run(accumulators.position)[0]
                for value in factors:
                    session.run(push, {factor: value, accumulators.round: number})
                steps.append(int(chief.run(ends.update, {ends.round: number, ends.needed: 2})))
                found.append(list(map(float, chief.run(looked))))
                if len(found) == 3:
                    chief.run(soon)
    return {"steps": steps, "found": found, "looked at": looked_at()}


def looked_at() -> bool:
    """Whether the chief has each mean looked at on the parameter server that holds it, of two."""
    with tf.Graph().as_default() as graph, placed("/job:ps/task:0", 2, 1):
        objective, accumulators = halves(tf.constant(1.0))
        accumulators.build_update(objective)
        looks = [each for each in graph.get_operations() if each.type == "IsFinite" and each.inputs[0].shape.rank]
        homes = sorted(variable.device for _, variable in objective.pairs)
        assert homes == ["/job:ps/task:0", "/job:ps/task:1"], homes
        return sorted(each.device for each in looks) == homes


def halves(factor: Any) -> tuple[Objective, Accumulators]:
    """Two variables at 0 with gradients of 1e-8 times `factor`, too small for float16; the rate is a half."""
    given = hparams(activation_dtype="float16", optimizer="sgd", clip_grad_norm=0.0)
    step = tf.train.get_or_create_global_step()
    parts = [tf.get_variable(name, [4], initializer=tf.zeros_initializer()) for name in ("a", "b")]
    small = [tf.reduce_sum(tf.cast(tf.cast(part, tf.float16) * 1e-4, tf.float32) * 1e-4) for part in parts]
    asked = optimizer.Request(tf.add_n(small) * factor, tf.constant(0.5), given, parts)
    total, made, pairs = optimizer.gradients(asked, asked.rate)
    objective = Objective(total, pairs, made, lambda given: given, lambda by: made, tf.constant(1.0))
    return objective, Accumulators(parts, step)


def evaluated() -> list[float]:
    """The loss of an evaluation with the targets, and of one that reads what it wrote itself."""

    def of(alone: bool) -> float:
        given = hparams(eval_run_autoregressive=alone)
        given.problem = Unmeasured()
        definition = registry.Definition(Reader, given, given.problem)
        with tf.Graph().as_default(), tf.Session() as session:
            return float(session.run(t2t_graph.evaluation_graph(definition, {"targets": tf.zeros([2, 1, 1, 1])}).loss))

    return [of(alone=False), of(alone=True)]


def shuffled() -> list[int]:
    """batch_shuffle_size as a run has it: not named, named with its default, named."""

    def of(typed: str) -> int:
        return registry._hparams(RunSpec("run-1", 10, "m", "basic_fc_small", "p", typed), "").batch_shuffle_size

    return [of(""), of("batch_shuffle_size=512"), of("batch_size=16,batch_shuffle_size=8")]


if __name__ == "__main__":
    both = {"twice": said(lambda: asked(Twice)), "averaged": said(lambda: asked(Averaged))}
    optimized = {"plain": asked(Plain), "halved": asked(Halved), **both, "flow": flow_prior()}
    scales = {"scaled": [scaled(damped=False), scaled(damped=True)], "rounds": scaled_rounds()}
    noises = {"noise": noise(), "sparse noise": sparse_noise()}
    others = {"shuffled": shuffled(), "evaluated": evaluated()}
    print(json.dumps({"refused": refusals(), **optimized, **scales, **noises, **others}))
