// pg-boss.
import { PgBoss } from "pg-boss";
import { committed, done, job, now, obey, payload, stamp, topic } from "./common.js";

const boss = new PgBoss({
  connectionString: job.dsn,
  schedule: false,
  supervise: false,
  useListenNotify: job.role === "work" && job.best && job.stamp,
});
boss.on("error", (err) => console.error(err));
await boss.start();

if (job.role === "insert") {
  await boss.createQueue(topic, { notify: !!job.best });
  const size = Math.max(1, Math.min(5000, Math.floor((16 << 20) / (job.payload || 1))));
  await obey(async () => {
    for (let n = 0; n < (job.events ?? 0); n += size) {
      const jobs = [];
      for (let i = n; i < Math.min(n + size, job.events); i++) jobs.push({ data: payload(i, job.payload) });
      await boss.insert(topic, jobs);
      done(jobs.length);
    }
    return () => boss.stop();
  });
} else if (job.role === "produce") {
  await obey(async () => {
    const started = now();
    const total = Math.floor(job.rate * job.seconds);
    const one = async (n) => {
      await boss.send(topic, payload(n, 200));
      committed(n);
    };
    const sent = [];
    for (let n = 0; n < total; ) {
      const due = Math.floor((Number(now() - started) / 1e9) * job.rate) + 1;
      while (n < Math.min(due, total)) sent.push(one(n++));
      await new Promise((resolve) => setTimeout(resolve, 1));
    }
    await Promise.all(sent);
    done(total);
    return () => boss.stop();
  });
} else {
  await obey(async () => {
    const options = job.best
      ? { batchSize: 1000, burstWhenBatchFull: true, pollingIntervalSeconds: 0.5, localConcurrency: job.stamp ? 1 : 4 }
      : { batchSize: 1000 };
    await boss.work(topic, options, async (jobs) => {
      for (const { data } of jobs) stamp(data.n);
      done(jobs.length);
    });
    return () => boss.stop({ graceful: true, timeout: 5000 });
  });
}
