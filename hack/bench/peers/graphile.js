// Graphile Worker. The best settings are those of its documentation's page on performance.
import { makeWorkerUtils, run, Logger } from "graphile-worker";
import pg from "pg";
import { done, job, obey, payload, stamp, topic } from "./common.js";

const quiet = new Logger(() => () => {});
const best = {
  concurrentJobs: 24,
  maxPoolSize: 25,
  localQueue: { size: 500 },
  completeJobBatchDelay: 0,
  failJobBatchDelay: 0,
};

if (job.role === "insert") {
  const utils = await makeWorkerUtils({ connectionString: job.dsn, logger: quiet });
  await utils.migrate();
  const size = Math.max(1, Math.min(5000, Math.floor((16 << 20) / (job.payload || 1))));
  await obey(async () => {
    for (let n = 0; n < (job.events ?? 0); n += size) {
      const specs = [];
      for (let i = n; i < Math.min(n + size, job.events); i++) {
        specs.push({ identifier: topic, payload: payload(i, job.payload) });
      }
      await utils.addJobs(specs);
      done(specs.length);
    }
    return () => utils.release();
  });
} else {
  const worker = job.best ? best : { concurrentJobs: 10, maxPoolSize: 11 };
  const pool = new pg.Pool({ connectionString: job.dsn, max: worker.maxPoolSize });
  pool.on("error", () => {});
  await pool.query("select 1");
  await obey(async () => {
    const runner = await run({
      pgPool: pool,
      logger: quiet,
      noHandleSignals: true,
      taskList: {
        [topic]: (p) => {
          stamp(p.n);
          done(1);
        },
      },
      preset: { worker },
    });
    return async () => {
      await runner.stop();
      await pool.end();
    };
  });
}
