// Numbers to text and back. Sizes are bytes, times are ns offsets; both are exact integers in a double.

const SIZE_UNITS = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];

/** Group digits by thousands: 1234567 -> "1,234,567". */
export function count(n) {
  return String(n).replace(/\B(?=(\d{3})+(?!\d))/g, ",");
}

/** Size with a binary unit, three digits: 1536 -> "1.50 KiB". */
export function bytes(n) {
  let value = Math.abs(n);
  let power = 0;
  while (value >= 1024 && power < SIZE_UNITS.length - 1) {
    value /= 1024;
    power += 1;
  }
  if (power && Math.round(value * 10) >= 10240 && power < SIZE_UNITS.length - 1) {
    value /= 1024;
    power += 1;
  }
  const digits = power === 0 ? 0 : value < 10 ? 2 : 1;
  return `${n < 0 ? "-" : ""}${value.toFixed(digits)} ${SIZE_UNITS[power]}`;
}

/** Size in full: "1.50 KiB (1,536 B)". */
export function bytesExact(n) {
  return n < 1024 ? `${n} B` : `${bytes(n)} (${count(n)} B)`;
}

/** Tick text of the byte axis: without decimals that say nothing, "256 MiB". */
export function byteTick(n) {
  if (n === 0) return "0 B";
  let value = Math.abs(n);
  let power = 0;
  while (value >= 1024 && power < SIZE_UNITS.length - 1) {
    value /= 1024;
    power += 1;
  }
  return `${n < 0 ? "-" : ""}${Number(value.toFixed(4))} ${SIZE_UNITS[power]}`;
}

/** Offset in ms, exact to the ns, without trailing zeros: 1500001 -> "1.500001". */
export function milliseconds(ns, grouped = true) {
  const size = Math.abs(Math.round(ns));
  const whole = Math.floor(size / 1e6);
  const rest = size - whole * 1e6;
  const fraction = rest ? `.${String(rest).padStart(6, "0").replace(/0+$/, "")}` : "";
  return `${ns < 0 ? "-" : ""}${grouped ? count(whole) : whole}${fraction}`;
}

/** Offset for reading: "12,345.678 ms". */
export function offset(ns) {
  return `${milliseconds(ns)} ms`;
}

/** Offset rounded to what a screen can resolve, `step` ns being one pixel: "12,345.7 ms". */
export function offsetAbout(ns, step) {
  const digits = Math.min(Math.max(6 - Math.floor(Math.log10(Math.max(step, 1))), 0), 6);
  const [whole, fraction] = (ns / 1e6).toFixed(digits).split(".");
  return `${whole.startsWith("-") ? "-" : ""}${count(whole.replace("-", ""))}${fraction ? `.${fraction}` : ""} ms`;
}

/** Duration in the unit that reads best. */
export function duration(ns) {
  if (ns < 1e3) return `${ns} ns`;
  if (ns < 1e6) return `${(ns / 1e3).toFixed(3)} µs`;
  if (ns < 1e9) return `${(ns / 1e6).toFixed(3)} ms`;
  return `${(ns / 1e9).toFixed(3)} s`;
}

/** Duration to the ns: "1.5 ms (1,500,000 ns)". */
export function durationExact(ns) {
  return ns < 1e3 ? `${ns} ns` : `${duration(ns)} (${count(ns)} ns)`;
}

/** Epoch of an offset as UTC with nine decimals; `origin` is text because no double holds it. */
export function epoch(origin, ns) {
  const time = BigInt(origin) + BigInt(Math.round(ns));
  const second = 1000000000n;
  const rest = ((time % second) + second) % second;
  const date = new Date(Number((time - rest) / 1000000n));
  if (Number.isNaN(date.getTime())) return `${time} ns`;
  return `${date.toISOString().slice(0, 19).replace("T", " ")}.${String(rest).padStart(9, "0")} UTC`;
}

/** Decimals that a number of some unit needs to be told whole, at most nine. */
function decimalsOf(ns, unit) {
  let digits = 0;
  while (digits < 9 && (Math.round(ns) * 10 ** digits) % unit) digits += 1;
  return digits;
}

/** Texts of the ticks of a time axis, all with as many decimals as one of them needs. */
export function timeTicks(ticks) {
  const steps = ticks.slice(1).map((tick, i) => Math.abs(tick - ticks[i]));
  const seconds = Math.min(...steps) >= 1e8 && steps.length > 0;
  const unit = seconds ? 1e9 : 1e6;
  const digits = Math.max(0, ...ticks.map((tick) => decimalsOf(tick, unit)));
  return ticks.map((tick) => {
    const [whole, fraction] = (tick / unit).toFixed(digits).split(".");
    const text = `${whole.startsWith("-") ? "-" : ""}${count(whole.replace("-", ""))}`;
    return `${text}${fraction ? `.${fraction}` : ""} ${seconds ? "s" : "ms"}`;
  });
}

const CLOCK = /^(?:(\d{4}-\d\d-\d\d)[T ])?(\d\d?):(\d\d):(\d\d)(?:\.(\d{1,9}))?\s*(?:UTC|Z)?$/i;

/** Read a place in time: ms as an offset, or a UTC clock, of the origin's day unless a date is given. ns, or NaN. */
export function parseTime(text, origin) {
  const found = CLOCK.exec(text.trim());
  if (!found) return parseMilliseconds(text);
  const day = found[1] ?? epoch(origin, 0).slice(0, 10);
  const second = Date.parse(`${day}T${found[2].padStart(2, "0")}:${found[3]}:${found[4]}Z`);
  if (Number.isNaN(second)) return NaN;
  const at = BigInt(second) * 1000000n + BigInt((found[5] ?? "").padEnd(9, "0"));
  return Number(at - BigInt(origin));
}

/** Read a number of ms from an input: ns, or NaN. */
function parseMilliseconds(text) {
  const plain = text.replace(/[\s,]/g, "").replace(/ms$/, "");
  return /^-?\d+(\.\d*)?$|^-?\.\d+$/.test(plain) ? Math.round(Number(plain) * 1e6) : NaN;
}

/** A stack frame without its folders, so that file and line fit into a small place. */
export function shortFrame(text) {
  return text.slice(0, 1000).replace(/^[^(]*[/\\](?=.)/, "");
}

/** Cut a text that is too long to show. */
export function clip(text, length) {
  return text.length > length ? `${text.slice(0, length)}…` : text;
}
