"""What Tensor2Tensor would call of a model or a problem, tried in one process; prints what came out as JSON.

A program of its own, because TensorFlow is not imported into the process of the tests.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from transient_magics.errors import TransientError
from transient_magics.runtime.folder import RunSpec
from transient_magics.runtime.t2t import bridges

tf = bridges.cross()

from tensor2tensor.data_generators import multi_problem, problem  # noqa: E402
from tensor2tensor.models import basic  # noqa: E402
from tensor2tensor.utils import learning_rate, optimize, t2t_model  # noqa: E402

from transient_magics.runtime.graph import accumulate  # noqa: E402
from transient_magics.runtime.graph.training import applied  # noqa: E402
from transient_magics.runtime.t2t import optimizer, refused, registry  # noqa: E402
from transient_magics.runtime.trainable import Objective  # noqa: E402

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
        return said(lambda: refused.check(model, hparams(**values), of.__new__(of), spec))

    sharded = RunSpec("run-1", 1000, "m", "basic_fc_small", "p", ps_shards=2)
    return {
        "nothing": check(),
        "train_hooks": check(Hooked),
        "estimator_model_fn": check(Estimated),
        "input_fn": check(of=Fed),
        "MultiProblem": check(of=Mixed),
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
        found = optimizer.asked_of_optimize(kind(hparams(**values), TRAIN), tf.constant(3.0))
        session.run(step.initializer)
        session.run(step.assign(10_000))
        loss, rate = session.run([found.loss, found.rate])
    return {"loss": float(loss), "rate": float(rate), "variables": [each.op.name for each in found.variables]}


def flow_prior() -> list[float]:
    """The learning rate of transformer_vae_flow_prior at step 10,000: as it asks for it, and as the others would."""
    model, chosen = registry.find("model", "transformer_vae_flow_prior"), registry.find("hparams", "wmt_diag_small")
    with tf.Graph().as_default(), tf.Session() as session:
        step = tf.train.get_or_create_global_step()
        found = optimizer.asked_of_optimize(model(chosen, TRAIN), tf.constant(3.0))
        session.run(step.initializer)
        session.run(step.assign(10_000))
        return [float(each) for each in session.run([found.rate, learning_rate.learning_rate_schedule(chosen)])]


def noise() -> dict[str, Any]:
    """By how much a variable of the body moves whose gradient is 0: of pushes, of a step of two workers, of one."""
    with tf.Graph().as_default(), tf.Session() as session:
        step, given = tf.train.get_or_create_global_step(), hparams(weight_noise=1e4, clip_grad_norm=0.0)
        given.optimizer = "sgd"
        variable = tf.get_variable("m/body/weights", [1000], initializer=tf.zeros_initializer())
        wanted = optimizer.Asked(tf.reduce_sum(variable) * 0.0, tf.constant(1.0), given, [variable])
        total, made, pairs = optimizer.gradients(wanted, wanted.rate)
        objective = Objective(
            total, pairs, made, lambda given: given, lambda by: made, 1.0,
            lambda: optimizer.weight_noise(given, wanted.rate),
        )  # fmt: skip
        accumulators = accumulate.Accumulators([variable], step)
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
        asked = optimizer.Asked(tf.reduce_sum(small), tf.constant(0.5), given, [weights])
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


def shuffled() -> list[int]:
    """batch_shuffle_size as a run has it: not named, named with its default, named."""

    def of(typed: str) -> int:
        return registry._hparams(RunSpec("run-1", 10, "m", "basic_fc_small", "p", typed), "").batch_shuffle_size

    return [of(""), of("batch_shuffle_size=512"), of("batch_size=16,batch_shuffle_size=8")]


if __name__ == "__main__":
    both = {"twice": said(lambda: asked(Twice)), "averaged": said(lambda: asked(Averaged))}
    optimized = {"plain": asked(Plain), "halved": asked(Halved), **both, "flow": flow_prior()}
    scales = [scaled(damped=False), scaled(damped=True)]
    noises = {"noise": noise(), "sparse noise": sparse_noise()}
    print(json.dumps({"refused": refusals(), **optimized, "scaled": scales, **noises, "shuffled": shuffled()}))
