// Servers under test: a handler served in this process, or a process of its own that can be killed.
import { spawn } from 'node:child_process';
import { randomInt } from 'node:crypto';
import { once } from 'node:events';
import http from 'node:http';
import net from 'node:net';
import { setTimeout as sleep } from 'node:timers/promises';

import { KitError } from './testing-errors.mjs';
import { Session, WAIT_MS } from './testing-session.mjs';

const START_MS = 20_000;
const STOP_MS = 5_000;
const POLL_MS = 20;
const LOG_SHOWN = 4_000;
// Linux chooses ports from 32768 on, others from 49152 on.
const FIRST_PORT = 20_000;
const LAST_PORT = 32_000;
const PORT_ATTEMPTS = 100;

/** A server that runs. `url` is that of its MCP endpoint, `port` stays the same over restarts. */
export class Server {
  #headers;
  #sessions = [];

  constructor(port, { path = '/mcp', headers = {}, waitMs = WAIT_MS }) {
    this.port = port;
    this.url = `http://127.0.0.1:${port}${path}`;
    this.waitMs = waitMs;
    this.#headers = headers;
  }

  async session({ headers, ...options } = {}) {
    const all = { waitMs: this.waitMs, ...options, headers: { ...this.#headers, ...headers } };
    const session = await Session.open(this.url, all);
    this.#sessions.push(session);
    return session;
  }

  get log() {
    return '';
  }

  async kill() {
    throw new KitError('not_restartable', "this server runs in the test's own process: give a command instead");
  }

  async start() {
    throw new KitError('not_restartable', "this server runs in the test's own process: give a command instead");
  }

  async restart() {
    await this.kill();
    await this.start();
  }

  async close() {
    this.#sessions.forEach((session) => session.close());
    await this.stop();
  }
}

/** A handler in this process, under node:http. */
class Served extends Server {
  #server;

  constructor(server, options) {
    super(server.address().port, options);
    this.#server = server;
  }

  static async begin(target, options) {
    const server = typeof target === 'function' ? http.createServer(target) : target;
    server.listen(0, '127.0.0.1');
    await once(server, 'listening');
    return new Served(server, options);
  }

  async stop() {
    const closed = once(this.#server, 'close');
    this.#server.close();
    this.#server.closeAllConnections();
    await closed;
  }
}

/** A command, in a process group of its own. */
class Process extends Server {
  #command;
  #options;
  #startMs;
  #child;
  #log = '';
  #atExit = () => this.#signal('SIGKILL');

  constructor(command, port, { env, cwd, startMs = START_MS, ...options }) {
    super(port, options);
    this.#command = command.map((part) => String(part).replaceAll('{port}', port));
    this.#options = {
      cwd,
      env: { ...process.env, ...env, PORT: String(port) },
      stdio: ['ignore', 'pipe', 'pipe'],
      detached: true,
    };
    this.#startMs = startMs;
    process.on('exit', this.#atExit);
  }

  static async begin(command, options) {
    const server = new Process(command, await freePort(), options);
    try {
      await server.start();
    } catch (error) {
      await server.stop();
      throw error;
    }
    return server;
  }

  get log() {
    return this.#log;
  }

  async start() {
    if (this.#child !== undefined && this.#isRunning()) {
      throw new KitError('not_restartable', 'the process is still running');
    }
    const [file, ...args] = this.#command;
    const child = (this.#child = spawn(file, args, this.#options));
    let fault;
    child.on('error', (error) => {
      fault = error;
    });
    for (const stream of [child.stdout, child.stderr]) {
      stream.setEncoding('utf8').on('data', (text) => {
        this.#log += text;
      });
    }
    const end = performance.now() + this.#startMs;
    while (fault !== undefined || !(await listens(this.port))) {
      if (fault !== undefined || !this.#isRunning()) {
        const how = fault?.message ?? `it ended with ${child.exitCode ?? child.signalCode}`;
        throw new KitError('not_started', `${how}\n${this.#log.slice(-LOG_SHOWN)}`);
      }
      if (performance.now() > end) {
        await this.kill();
        const shown = `it does not listen on port ${this.port}, which PORT names\n${this.#log.slice(-LOG_SHOWN)}`;
        throw new KitError('not_started', shown);
      }
      await sleep(POLL_MS);
    }
  }

  #isRunning() {
    return this.#child.pid !== undefined && this.#child.exitCode === null && this.#child.signalCode === null;
  }

  #signal(signal) {
    if (this.#child?.pid !== undefined) {
      try {
        process.kill(-this.#child.pid, signal);
      } catch {
        // The whole group is gone.
      }
    }
  }

  async kill() {
    if (this.#child === undefined) {
      return;
    }
    const exited = this.#isRunning() ? once(this.#child, 'exit') : undefined;
    // A wrapper that is gone may have left behind what it started.
    this.#signal('SIGKILL');
    await exited;
  }

  async stop() {
    if (this.#child !== undefined && this.#isRunning()) {
      const exited = once(this.#child, 'exit');
      this.#child.kill('SIGTERM');
      await Promise.race([exited, sleep(STOP_MS, undefined, { ref: false })]);
    }
    await this.kill();
    process.off('exit', this.#atExit);
  }
}

export async function serve(target, options = {}) {
  if (typeof target === 'string') {
    return Process.begin([process.execPath, target], options);
  }
  if (Array.isArray(target)) {
    return Process.begin(target, options);
  }
  if (typeof target === 'function' || target instanceof net.Server) {
    return Served.begin(target, options);
  }
  throw new TypeError(`${typeof target} is no server: give a handler, an http.Server, a file or a command`);
}

/** Whether somebody takes connections there. */
function listens(port) {
  return new Promise((resolve) => {
    const socket = net.connect(port, '127.0.0.1');
    const over = (found) => {
      socket.destroy();
      resolve(found);
    };
    socket.setTimeout(1_000, () => over(false)).on('connect', () => over(true)).on('error', () => over(false));
  });
}

/** A port that nobody is given until the process listens there: the system's own choices are above. */
async function freePort() {
  let fault;
  for (let attempt = 0; attempt < PORT_ATTEMPTS; attempt++) {
    const port = randomInt(FIRST_PORT, LAST_PORT + 1);
    const server = net.createServer().listen(port, '127.0.0.1');
    try {
      await once(server, 'listening');
    } catch (error) {
      fault = error;
      continue;
    }
    server.close();
    await once(server, 'close');
    return port;
  }
  throw new KitError('not_started', `no port is free: ${fault.message}`);
}
