// What the workers in Node.js share: they obey the same commands and print the same reports as those
// in Go (protocol.go). The job is the last argument.
import { createHash } from "node:crypto";

export const job = JSON.parse(process.argv.at(-1));
export const topic = "orders";

/** The machine's monotonic clock in nanoseconds, as in Go. */
export const now = () => process.hrtime.bigint();

const say = (report) =>
  new Promise((done) =>
    process.stdout.write(
      JSON.stringify(report, (_, v) => (typeof v === "bigint" ? Number(v) : v)) + "\n",
      done,
    ),
  );

// Text that does not compress.
const noise = (() => {
  let text = "";
  for (let i = 0; text.length < 1 << 20; i++) text += createHash("sha512").update(`${i}`).digest("base64url");
  return text;
})();

/** A payload of size bytes with the event's number. */
export function payload(n, size) {
  const pad = Math.max(0, size - `{"n":${n},"text":""}`.length);
  const from = (n * 7919) % (noise.length >> 1);
  return { n, text: noise.slice(from, from + pad) };
}

let handled = 0;
let at = 0n;
const stamps = [];

/** Counts n events that were handled. */
export function done(n) {
  handled += n;
  at = now();
}

/** Records that event n reached the handler, if that was requested. */
export function stamp(n) {
  if (job.stamp) stamps.push([n, Number(now())]);
}

/** Notes the time of event n: for producers, after its commit. */
export function committed(n) {
  stamps.push([n, Number(now())]);
}

/** Waits for the command to start, calls start, and calls the stop that it returned on command. */
export async function obey(start) {
  await say({ ready: true });
  let begun;
  const begin = new Promise((resolve) => (begun = resolve));
  const end = new Promise((resolve) => process.stdin.on("data", begun).on("end", resolve));
  if ((await Promise.race([begin, end])) === undefined) return;
  let reported = 0;
  const tick = setInterval(() => {
    if (handled > reported) say({ handled: (reported = handled), at });
  }, 10);
  let error;
  try {
    const stop = await start();
    await end;
    await stop?.();
  } catch (err) {
    error = `${err.stack ?? err}`;
  }
  clearInterval(tick);
  await say({ handled, at, stamps, error });
  process.exit(error ? 1 : 0);
}
