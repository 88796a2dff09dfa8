// Servers under test: a handler served in this process, or a process of its own that can be killed.
import { type ChildProcess, type SpawnOptions, spawn, spawnSync } from 'node:child_process';
import { randomInt } from 'node:crypto';
import { once } from 'node:events';
import http from 'node:http';
import net from 'node:net';
import { setTimeout as sleep } from 'node:timers/promises';

import { invalid, TailropeError } from '../errors.mjs';
import { checkNames } from '../options.mjs';
import { Session, WAIT_MS } from './session.mjs';
import type * as kit from './types.mjs';

const START_MS = 60_000;
const STOP_MS = 5_000;
const POLL_MS = 20;
const LOG_SHOWN = 4_000;
// Linux chooses ports from 32768 on, others from 49152 on.
const FIRST_PORT = 20_000;
const LAST_PORT = 32_000;
const PORT_ATTEMPTS = 100;

/** A handler of node:http, as express and others make one. */
export type Handler = (req: http.IncomingMessage, res: http.ServerResponse) => unknown;

abstract class Server implements kit.Server {
  readonly port: number;
  readonly url: string;
  readonly #waitMs: number;
  readonly #headers: Record<string, string>;
  readonly #sessions: Session[] = [];

  constructor(port: number, { path = '/mcp', headers = {}, waitMs = WAIT_MS }: kit.ServeOptions) {
    this.port = port;
    this.url = `http://127.0.0.1:${port}${path}`;
    this.#waitMs = waitMs;
    this.#headers = headers;
  }

  async session({ headers, ...options }: kit.SessionOptions = {}): Promise<Session> {
    const all = { waitMs: this.#waitMs, ...options, headers: { ...this.#headers, ...headers } };
    const session = await Session.open(this.url, all);
    this.#sessions.push(session);
    return session;
  }

  get log(): string {
    return '';
  }

  abstract kill(): Promise<void>;
  abstract start(): Promise<void>;
  protected abstract stop(): Promise<void>;

  async restart(): Promise<void> {
    await this.kill();
    await this.start();
  }

  async close(): Promise<void> {
    for (const session of this.#sessions) {
      session.close();
    }
    await this.stop();
  }
}

/** A handler in this process, under node:http. */
class Served extends Server {
  readonly #server: http.Server;

  constructor(server: http.Server, port: number, options: kit.ServeOptions) {
    super(port, options);
    this.#server = server;
  }

  static async begin(target: Handler | http.Server, options: kit.ServeOptions): Promise<Served> {
    const server = typeof target === 'function' ? http.createServer(target) : target;
    return new Served(server, await listen(server, 0), options);
  }

  async kill(): Promise<never> {
    throw new TailropeError('not_restartable', "this server runs in the test's own process: give a command instead");
  }

  start(): Promise<never> {
    return this.kill();
  }

  protected async stop(): Promise<void> {
    const closed = once(this.#server, 'close');
    this.#server.close();
    this.#server.closeAllConnections();
    await closed;
  }
}

/** A command, in a process group of its own. */
class Process extends Server {
  readonly #command: string[];
  readonly #options: SpawnOptions;
  readonly #startMs: number;
  #child: ChildProcess | undefined;
  #log = '';
  readonly #atExit = () => this.#endGroup();

  constructor(command: readonly string[], port: number, options: kit.ServeOptions) {
    super(port, options);
    const { env, cwd, startMs = START_MS } = options;
    this.#command = command.map((part) => String(part).replaceAll('{port}', String(port)));
    this.#options = {
      cwd,
      env: { ...process.env, ...env, PORT: String(port) },
      stdio: ['ignore', 'pipe', 'pipe'],
      // The group of its own; on Windows this would be a window of its own, and there are no groups.
      detached: process.platform !== 'win32',
    };
    this.#startMs = startMs;
    process.on('exit', this.#atExit);
  }

  static async begin(command: readonly string[], options: kit.ServeOptions): Promise<Process> {
    const server = new Process(command, await freePort(), options);
    try {
      await server.start();
    } catch (error) {
      await server.stop();
      throw error;
    }
    return server;
  }

  override get log(): string {
    return this.#log;
  }

  async start(): Promise<void> {
    if (isRunning(this.#child)) {
      throw new TailropeError('not_restartable', 'the process is still running');
    }
    const [file, ...args] = this.#command;
    const child = spawn(file, args, this.#options);
    this.#child = child;
    let fault: Error | undefined;
    child.on('error', (error) => {
      fault = error;
    });
    for (const stream of [child.stdout, child.stderr]) {
      stream?.setEncoding('utf8').on('data', (text: string) => {
        this.#log += text;
      });
    }
    const end = performance.now() + this.#startMs;
    while (fault !== undefined || !(await listens(this.port))) {
      if (fault !== undefined || !isRunning(child)) {
        const how = fault?.message ?? `it ended with ${child.exitCode ?? child.signalCode}`;
        throw new TailropeError('not_started', `${how}\n${this.#log.slice(-LOG_SHOWN)}`);
      }
      if (performance.now() > end) {
        await this.kill();
        const shown = `it does not listen on port ${this.port}, which PORT names\n${this.#log.slice(-LOG_SHOWN)}`;
        throw new TailropeError('not_started', shown);
      }
      await sleep(POLL_MS);
    }
  }

  /** Ends it at once with all that it started, also if it has ended itself. On Windows an ended one names no children. */
  #endGroup(): void {
    const pid = this.#child?.pid;
    if (pid === undefined) {
      return;
    }
    if (process.platform === 'win32') {
      spawnSync('taskkill', ['/T', '/F', '/PID', String(pid)], { stdio: 'ignore' });
      return;
    }
    try {
      process.kill(-pid, 'SIGKILL');
    } catch {
      // The whole group is gone.
    }
  }

  async kill(): Promise<void> {
    const exited = isRunning(this.#child) ? once(this.#child, 'exit') : undefined;
    // A wrapper that is gone may have left behind what it started.
    this.#endGroup();
    await exited;
  }

  protected async stop(): Promise<void> {
    if (isRunning(this.#child)) {
      const exited = once(this.#child, 'exit');
      this.#child.kill('SIGTERM');
      await Promise.race([exited, sleep(STOP_MS, undefined, { ref: false })]);
    }
    await this.kill();
    process.off('exit', this.#atExit);
  }
}

/**
 * Starts a server on a free port of 127.0.0.1. `target` is one of
 *
 * - a handler of node:http, such as an express application, or an `http.Server` that does not listen yet: served in
 *   this process;
 * - the path of a file that this Node runs, or a command as a list: a process of its own, which has to listen on the
 *   port that `PORT` in its environment names, and `{port}` in the command.
 *
 * @throws TailropeError `not_started`, with what the process wrote; `invalid_argument` for what cannot be served.
 */
export async function serve(
  target: string | readonly string[] | Handler | http.Server,
  options: kit.ServeOptions = {},
): Promise<kit.Server> {
  checkNames(options, ['path', 'headers', 'env', 'cwd', 'startMs', 'waitMs'], 'serve()');
  if (typeof target === 'string') {
    return Process.begin([process.execPath, target], options);
  }
  if (Array.isArray(target)) {
    return Process.begin(target, options);
  }
  if (typeof target === 'function' || target instanceof net.Server) {
    return Served.begin(target, options);
  }
  invalid(`${typeof target} is no server: give a handler, an http.Server, a file or a command`);
}

/** Listens on a port of this machine, 0 for any, and says which. */
async function listen(server: net.Server, port: number): Promise<number> {
  server.listen(port, '127.0.0.1');
  await once(server, 'listening');
  return (server.address() as net.AddressInfo).port;
}

function isRunning(child: ChildProcess | undefined): child is ChildProcess {
  return child?.pid !== undefined && child.exitCode === null && child.signalCode === null;
}

/** Whether somebody takes connections there. */
function listens(port: number): Promise<boolean> {
  return new Promise((resolve) => {
    const socket = net.connect(port, '127.0.0.1');
    const over = (found: boolean) => {
      socket.destroy();
      resolve(found);
    };
    socket
      .setTimeout(1_000, () => over(false))
      .on('connect', () => over(true))
      .on('error', () => over(false));
  });
}

/** A port that nobody is given until the process listens there: the system's own choices are above. */
async function freePort(): Promise<number> {
  let fault: unknown;
  for (let attempt = 0; attempt < PORT_ATTEMPTS; attempt++) {
    const server = net.createServer();
    let port: number;
    try {
      port = await listen(server, randomInt(FIRST_PORT, LAST_PORT + 1));
    } catch (error) {
      fault = error;
      continue;
    }
    server.close();
    await once(server, 'close');
    return port;
  }
  throw new TailropeError('not_started', `no port is free: ${fault}`);
}
