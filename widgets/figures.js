/* Figures and moments in words, as the kernel writes them (client/text.py). */

/** US dollars. @param {import("./snapshot").Figure | undefined} dollars */
export function money(dollars) {
  if (dollars === null || dollars === undefined || !Number.isFinite(dollars)) return "-";
  const digits = dollars < 0.00005 ? 2 : dollars < 0.01 ? 4 : dollars < 1 ? 3 : 2;
  return "$" + dollars.toLocaleString("en-US", { minimumFractionDigits: digits, maximumFractionDigits: digits });
}

export function clock(at, seconds = true) {
  if (!Number.isFinite(at)) return "-";
  const text = new Date(at * 1000).toLocaleTimeString("en-GB");
  return seconds ? text : text.slice(0, 5);
}

/** The day of a moment: 23 Nov. */
export function day(at) {
  return new Date(at * 1000).toLocaleDateString("en-GB", { day: "numeric", month: "short" });
}

/** The time of day, with the day where that is not the one of `now`. */
export function when(at, now) {
  return day(at) === day(now) ? clock(at) : `${day(at)} ${clock(at)}`;
}

/** Names as people count: worker-9 before worker-10. */
export function inOrder(names) {
  return [...names].sort((one, other) => one.localeCompare(other, "en", { numeric: true }));
}

/** A measured value in three significant digits. @param {import("./snapshot").Figure | undefined} value */
export function number(value) {
  if (value === null || value === undefined || !Number.isFinite(value)) return "-";
  return Math.abs(value) >= 999.5 ? Math.round(value).toLocaleString("en-US") : String(Number(value.toPrecision(3)));
}

/** Seconds in words: 42 s, 3 min 5 s, 2 h 10 min. */
export function duration(seconds) {
  const whole = Math.max(0, Math.round(seconds));
  const [hours, minutes, rest] = [Math.floor(whole / 3600), Math.floor(whole / 60) % 60, whole % 60];
  if (hours) return minutes ? `${hours} h ${minutes} min` : `${hours} h`;
  if (minutes) return rest ? `${minutes} min ${rest} s` : `${minutes} min`;
  return `${rest} s`;
}

/** Times of day; a day that begins is named at its first label. */
export function timeLabels(splits, step, today = day(Date.now() / 1000)) {
  let before = splits[0] === undefined || day(splits[0]) === day(splits.at(-1)) ? today : "";
  return splits.map((at) => {
    if (at === null) return "";
    const [now, time] = [day(at), clock(at, step < 60)];
    const said = now === before ? time : time === "00:00" ? now : `${now} ${time}`;
    before = now;
    return said;
  });
}
