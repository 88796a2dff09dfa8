// Gates, marks and counters that tests reach over HTTP beside the MCP endpoint, as those of the Python servers
// (tests/servers/python/control.py).
import { readdirSync, readFileSync } from 'node:fs';

import { drain, metricsEndpoint, stats } from 'tailrope/mcp';

import { Late } from '../../node/kit/raw.mjs';
import { forgetMarks, gate, marked, marks, open } from './control.mjs';
import { fullDisk } from './stores.mjs';
import { order } from './tools.mjs';
import { logged } from './transports.mjs';

const MARK_WAIT_MS = 5_000;
const PAGE_BYTES = 4096;

export const camelCase = (name) => name.replace(/_(.)/g, (_, letter) => letter.toUpperCase());
const snakeCase = (name) => name.replace(/[A-Z]/g, (letter) => `_${letter.toLowerCase()}`);
const renamed = (object, rename) =>
  Object.fromEntries(Object.entries(object).map(([key, value]) => [rename(key), value]));

/**
 * Answers below `/ctl/`, and makes the transport of `/current` anew at `/new`; all else goes to the server as it is, behind
 * the gate that the header `x-slow-auth` names, if any.
 */
export function controlled(made) {
  const paths = {
    open({ gate }) {
      open(...gate.split(','));
      return {};
    },
    async mark({ name, count = 1 }) {
      try {
        await marked(name, Number(count), MARK_WAIT_MS);
        return {};
      } catch (error) {
        if (!(error instanceof Late)) {
          throw error;
        }
        return { missing: name, marks: marks() };
      }
    },
    state() {
      const rss = Number(readFileSync('/proc/self/statm', 'utf8').split(' ')[1]) * PAGE_BYTES;
      const descriptors = readdirSync('/proc/self/fd').length;
      const errors = made.errors.map(String);
      const store = made.store?.state?.();
      const { pid } = process;
      return { marks: marks(), requests: { GET: 0, ...made.requests }, rss, descriptors, errors, store, pid };
    },
    held() {
      forgetMarks();
      made.forget();
      logged.length = 0;
      gc();
      const { heapUsed, external } = process.memoryUsage();
      return { ...paths.state(), heap: heapUsed + external, sessions: made.size };
    },
    act: ({ name, step }) => order(name, step),
    async store(_, faults) {
      if (made.store.plan !== undefined) {
        made.store.plan(renamed(faults, camelCase));
        return made.store.state();
      }
      // The example's files, whose disk is full while it is to fail.
      await fullDisk(faults.fail !== undefined);
      return {};
    },
    /** Does at once what a process does at its exit, and no more. */
    exit() {
      process.on('exit', () => process.kill(process.pid, 'SIGKILL'));
      process.exit();
    },
    stats: () => renamed(stats(), snakeCase),
    async drain(_, options) {
      await drain(renamed(options, camelCase));
      return {};
    },
  };
  return async (req, res) => {
    const { pathname, searchParams } = new URL(req.url, 'http://localhost');
    if (pathname === '/new') {
      await made.renew(searchParams.has('json_response'));
      res.end();
      return;
    }
    if (!pathname.startsWith('/ctl/')) {
      const slowAuth = req.headers['x-slow-auth'];
      if (slowAuth !== undefined) {
        await gate(slowAuth);
      }
      await made.listener(req, res);
      return;
    }
    if (pathname === '/ctl/metrics') {
      metricsEndpoint(req, res);
      return;
    }
    const parts = await req.toArray();
    const body = parts.length > 0 ? JSON.parse(Buffer.concat(parts)) : {};
    const answer = JSON.stringify(await paths[pathname.slice('/ctl/'.length)](Object.fromEntries(searchParams), body));
    const headers = { 'content-type': 'application/json', 'content-length': Buffer.byteLength(answer) };
    res.writeHead(200, headers).end(answer);
  };
}
