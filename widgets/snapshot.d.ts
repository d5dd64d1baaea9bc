/* What a kernel sends: written by tools/page_types.py from the package, see there. */

export type Figure = number | null;
export type Part = [string, string, number, number];
export type Mark = [string, number, number | null, string] | [string, number, number | null, string, number | null];
export type Parameter = number | string;
export type Point = [number, number];
export type BagPoint = [string, number, (number | string)[], (number | null)[], (number | null)[]];

/** A VM.
 *
 * `first` says whether its lane is shown before all are asked for. `runs` are the runs that it
 * trains. `leaves_at` is when it is revoked, 0 without a notice. */
export interface Lane {
  name: string;
  first: boolean;
  runs: string[];
  role: string;
  chief: boolean;
  machine: string;
  zone: string;
  terms: string;
  state: string;
  words: string;
  leaves_at: number;
  revocable: boolean;
  life: Part[];
}

/** The cost of a cluster in US dollars, and per hour.
 *
 * `pace` is the seconds of the bill's clock per second. `limit_used` is a share, 0 to 1. */
export interface Cost {
  limit_words: string;
  limit_used: number;
  total: Figure;
  hourly: Figure;
  pace: number;
  on_demand: Figure;
  on_demand_hourly: Figure;
  total_words: string;
  hourly_words: string;
  on_demand_words: string;
  saved_words: string;
  lines_words: string;
  transfer_words: string;
  source: string;
}

/** The end of a run's curves: seconds since 1970, step, loss, and steps per second. */
export interface End {
  time: number;
  step: number;
  loss: Figure;
  speed: Figure;
}

/** Proposed workers for a run with a deadline, or workers to give up.
 *
 * `number` identifies the proposal when the user agrees. `text` says what and why, `how` what to
 * type in a cell. `until` is when it expires, in seconds since 1970. */
export interface Proposal {
  number: number;
  text: string;
  how: string;
  until: number;
}

/** The run that a panel shows.
 *
 * `counted` is its progress in words. `facts` are names and values. `data` says how it reads
 * records in blocks; it is empty for other runs. `end` is the end of the curves (`curves.end_of`). */
export interface Training {
  name: string;
  title: string;
  phase: string;
  phase_words: string;
  words: string;
  step: number;
  steps: number;
  counted: string;
  forecast: string;
  facts: [string, string][];
  data: string;
  proposal: Proposal | null;
  end: End | null;
  stoppable: boolean;
}

/** Work that has one line: another run, a job, a Dask cluster.
 *
 * `step` of `steps` is its progress (`steps` 0: not shown). Without a `name` the line counts
 * further work. */
export interface WorkLine {
  name: string;
  phase: string;
  words: string;
  step: number;
  steps: number;
  stoppable: boolean;
}

/** The lines of all work of one kind, and the title of their list. */
export interface WorkGroup {
  kind: string;
  title: string;
  lines: WorkLine[];
}

/** An event, or several alike ones. `at`: seconds since 1970. */
export interface EventLine {
  at: number;
  clock: string;
  text: string;
  tone: string;
  family: string;
}

/** A snapshot.
 *
 * `at`, `since` and `until` are seconds since 1970; `until` is 0 while the cluster lives.
 * `proposal` has the workers to give up, if that can be agreed to. */
export interface View {
  version: number;
  at: number;
  as_of: string;
  name: string;
  focus: string | null;
  phase: string;
  phase_words: string;
  about: string;
  over: boolean;
  emulated: boolean;
  trouble: string;
  proposal: Proposal | null;
  spec: string;
  since: number;
  until: number;
  vms: Lane[];
  training: Training | null;
  beside: WorkLine[];
  work: WorkGroup[];
  cost: Cost;
  ending: string;
  events: EventLine[];
}

/** The result of an action of the page. */
export interface Notice {
  text?: string;
  tone?: string;
}

/** The question before a change of the workers; empty without one. */
export interface Question {
  spec?: string;
  text?: string;
}

/** A snapshot as it is sent. `received`: the latest action that the kernel received. */
export interface Frame {
  version: number;
  at: number;
  as_of: string;
  name: string;
  focus: string | null;
  phase: string;
  phase_words: string;
  about: string;
  over: boolean;
  emulated: boolean;
  trouble: string;
  proposal: Proposal | null;
  spec: string;
  since: number;
  until: number;
  vms: Lane[];
  training: Training | null;
  beside: WorkLine[];
  work: WorkGroup[];
  cost: Cost;
  ending: string;
  events: EventLine[];
  notice: Notice;
  question: Question;
  received: string;
}

/** The columns of one worker: steps per second.
 *
 * A run that is shown alone also has examples or tokens per step, and steps of others during a
 * step. */
export interface OfWorker {
  speed: Figure[];
  batch?: Figure[];
  staleness?: Figure[];
}

/** The step of a worker: the seconds of its `parts`, in the order of their names.
 *
 * `step` and `words` are the step and its parts in words. */
export interface Bar {
  worker: string;
  step: string;
  parts: Figure[];
  words: string;
}

/** The parts of a step.
 *
 * `names` are the names of the parts. `words` says which time they are from. `more` workers have
 * no bar. */
export interface Split {
  names: string[];
  words: string;
  bars: Bar[];
  more: number;
}

/** Rows over time: seconds since 1970, step, loss, steps per second, and the possible speed. */
export interface Columns {
  time: number[];
  step: number[];
  loss: Figure[];
  speed: Figure[];
  expected: Figure[];
  workers: Record<string, OfWorker>;
}

/** The end of an epoch of `model.fit`: seconds since 1970, step, and metrics as Keras names them. */
export interface Epoch {
  time: number;
  step: number;
  metrics: Record<string, Figure>;
}

/** The data of a run's charts.
 *
 * Below the share `below` of the possible speed the run is called slow (0: never). `width` is the
 * seconds of a row (0: unknown). `unnamed` says that there are too many workers to show each.
 * `split` is None before a step was split. */
export interface Curves {
  time: number[];
  step: number[];
  loss: Figure[];
  speed: Figure[];
  expected: Figure[];
  workers: Record<string, OfWorker>;
  run: string;
  below: number;
  width: number;
  unnamed: boolean;
  end: End | null;
  split: Split | null;
  marks: Mark[];
  epochs: Epoch[];
}

/** Curves that are sent now and then; the latest has the highest `number`. */
export interface Base {
  time: number[];
  step: number[];
  loss: Figure[];
  speed: Figure[];
  expected: Figure[];
  workers: Record<string, OfWorker>;
  run: string;
  below: number;
  width: number;
  unnamed: boolean;
  end: End | null;
  split: Split | null;
  marks: Mark[];
  epochs: Epoch[];
  number: number;
}

/** Rows since a base, which replace its rows from row `keep` on.
 *
 * `expected` has all rows. `split` is the present one. `marks` and `epochs` are there if they
 * differ from the base's. */
export interface Tail {
  time: number[];
  step: number[];
  loss: Figure[];
  speed: Figure[];
  expected: Figure[];
  workers: Record<string, OfWorker>;
  base: number;
  keep: number;
  unnamed: boolean;
  end: End | null;
  split: Split | null;
  marks?: Mark[];
  epochs?: Epoch[];
}

/** The speeds of a run whose curves are not drawn, for the lanes of its workers.
 *
 * `width` is the seconds of a row. */
export interface Speeds {
  run: string;
  width: number;
  time: number[];
  workers: Record<string, Figure[]>;
}

/** The last lines of a worker's log; empty until the user asks for them. */
export interface Log {
  worker?: string;
  text?: string;
}

/** A trial of a study.
 *
 * `params` are in the order of the study's parameters. `value` is the objective's latest value.
 * `hours`, `dollars` and `revocations` are sums over the runs of the trial. `curve` has pairs of
 * step and value; it is empty if the curve is not drawn. */
export interface TrialLine {
  number: number;
  state: string;
  words: string;
  params: Parameter[];
  value: Figure;
  best: boolean;
  hours: number;
  dollars: number;
  revocations: number;
  stoppable: boolean;
  curve: Point[];
}

/** A study.
 *
 * `ended` of `planned` trials have ended. `metric` and `direction` (max or min) are those of the
 * objective. `curves_of` names what the curves of the trials show. `best_so_far` has the number
 * and the value of each trial that was better than all before it. */
export interface Study {
  name: string;
  phase: string;
  words: string;
  about: string;
  ended: number;
  planned: number;
  metric: string;
  direction: string;
  curves_of: string;
  best_words: string;
  cost_words: string;
  emulated: boolean;
  stoppable: boolean;
  params: string[];
  trials: TrialLine[];
  best_so_far: Point[];
}

/** A part of a step.
 *
 * `seconds` is the mean and `words` the same with its interval. `share` is the share of the step,
 * and `dollar` the part of a dollar that it costs, or why that is not shown. `sure`: the part is
 * larger than the noise. */
export interface StallPart {
  name: string;
  seconds: Figure;
  words: string;
  share: string;
  dollar: string;
  sure: boolean;
}

/** A kind of VM with the parts of its step.
 *
 * `advice` is empty until enough was measured. `reads`: the workers read files, so a cache or a
 * disk matters. */
export interface StallBar {
  vm: string;
  heading: string;
  parts: StallPart[];
  advice: string;
  reads: boolean;
}

/** A measurement of stalls so far. `below` are the notes below the bars. */
export interface Stalls {
  name: string;
  words: string;
  bars: StallBar[];
  below: string[];
}

/** The predicted step with the change that was `asked` for: in words and by part, or an `error`.
 *
 * `parts` has names and seconds. */
export interface StallAnswer {
  asked: number;
  error: string;
  words: string;
  parts: [string, Figure][];
}

/** An axis on which points are placed: a parameter, or an output.
 *
 * `kind` is even, log or choice. A choice has `choices`, the others run from `low` to `high`.
 * `named` are labels: a place from 0 to 1, and the value there. */
export interface BagAxis {
  name: string;
  output: boolean;
  kind: string;
  low: number;
  high: number;
  choices: Parameter[];
  named: [number, string][];
}

/** The quality of a surrogate for one output, judged by its last batch.
 *
 * `coverage` is the share of results inside the 90% intervals, `residual` the median residual in
 * units of its own standard deviation, `largest` the largest standard deviation, and `until` the
 * one at which the bag stops. */
export interface BagTried {
  output: string;
  coverage: Figure;
  residual: Figure;
  largest: Figure;
  until: Figure;
  good: boolean;
}

/** A VM of a bag: its age, and the number of the job that it runs (None: no job).
 *
 * `at` has the parameters of that job in words, `words` its duration. */
export interface BagVm {
  name: string;
  age: string;
  state: string;
  job: number | null;
  at: string;
  words: string;
}

/** A bag.
 *
 * `results` of `planned` results are there. `per_result` is in US dollars. `counts` has the number
 * of points in each state. `more` VMs have no row. `tried_words` is empty without a surrogate. */
export interface Bag {
  name: string;
  phase: string;
  words: string;
  about: string;
  results: number;
  planned: number;
  cost_words: string;
  per_result: Figure;
  ends: string;
  counts: [string, number][];
  tried_words: string;
  tried: BagTried[];
  axes: BagAxis[];
  points: BagPoint[];
  vms: BagVm[];
  more: number;
  stoppable: boolean;
}
