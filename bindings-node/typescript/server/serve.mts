// Serves an MCP endpoint on a port. The front has the port; the HTTP server behind it, which is Node's, answers what that passes on.
import { lookup } from 'node:dns/promises';
import type { IncomingHttpHeaders, RequestListener } from 'node:http';
import { isIPv6 } from 'node:net';

import { type DrainOptions, drain } from '../drain.mjs';
import { invalid, ours } from '../errors.mjs';
import { Front } from '../native.mjs';
import { addHome } from '../options.mjs';
import { runtimeFor } from '../store/event-store.mjs';
import { Allowed } from './allowed.mjs';
import { type App, listenerOf, sendResponse } from './app.mjs';
import { Behind } from './behind.mjs';
import type { Exchange } from './exchange.mjs';
import { FrontDoor } from './front-door.mjs';
import { type Incoming, NodeExchange } from './node-exchange.mjs';
import { takePeer } from './peer.mjs';
import { guarded, refuse } from './refusal.mjs';
import type { StockClass, TransportOptions } from './sdk.mjs';
import type { AllowedSenders } from './transport-options.mjs';
import { isWrapped } from './wrappers.mjs';

/** The head of a request. */
export interface RequestHead {
  readonly method: string;
  /** The path and the query. */
  readonly url: string;
  /** By names in lower case. */
  readonly headers: IncomingHttpHeaders;
}

/** Gives who sends a request, which handlers find as `authInfo`, or the response to be given instead. */
export type Authenticate<AuthInfo> = (head: RequestHead) => AuthInfo | Response | Promise<AuthInfo | Response>;

/** What `serve` takes beside the options of the sessions. */
export interface ServingOptions<MakeServer, AuthInfo> {
  /** Makes the server of a session. */
  server: MakeServer;
  /** Default 3000. With 0 the system chooses. */
  port?: number;
  /** The address to listen at. Default `127.0.0.1`: for this machine alone. */
  host?: string;
  /** The path of the MCP endpoint. Default `/mcp`. */
  path?: string;
  /** Answers all other paths. Without it they are answered with 404. */
  app?: App;
  /** Other processes may listen at the same port, if they all say so: the system distributes the connections. Default false. */
  reusePort?: boolean;
  /**
   * Called for each request to the MCP endpoint, with its head alone. If it gives neither a user nor a `Response`, the answer is
   * 401.
   */
  authenticate?: Authenticate<AuthInfo>;
  /**
   * Checks `Host` and `Origin`. Default: if the server is for this machine alone, or has one of these lists. A server for this
   * machine that has no list takes any port of this machine.
   */
  enableDnsRebindingProtection?: boolean;
  allowedHosts?: string[];
  allowedOrigins?: string[];
}

/** A server that listens. */
export interface Serving {
  readonly port: number;
  /** The address of the MCP endpoint. */
  readonly url: string;
  /** Listens no more, does what the function `drain()` does, and closes. Then nothing here keeps the process. */
  drain(options?: DrainOptions): Promise<boolean>;
  /** Closes it now, with its connections. Sessions in a store that outlives the process go on in other processes. */
  close(): Promise<void>;
}

/** What serves an MCP endpoint: a router, or a handler. */
export interface Endpoint {
  setFront(front: FrontDoor): void;
  serve(exchange: Exchange): Promise<void>;
  close(): Promise<void>;
}

/** What `serve` needs of an SDK line. */
export interface Line<MakeServer, Options> {
  readonly sdk: { readonly major: number; readonly NodeStock: StockClass; readonly WebStock: StockClass };
  /** Refuses options that there are not. */
  check(options: object, of: string, ...more: readonly string[]): void;
  endpoint(makeServer: MakeServer, options: Options): Endpoint;
}

const OPTIONS = ['app', 'authenticate', 'host', 'path', 'port', 'reusePort', 'server'];
const SENDERS: (keyof AllowedSenders)[] = ['enableDnsRebindingProtection', 'allowedHosts', 'allowedOrigins'];
addHome('serve()', OPTIONS);
/** How long answers that end have to leave, once everything is closed. */
const LEAVE_MS = 500;
const MAX_PORT = 65_535;

class Server implements Serving {
  readonly port: number;
  readonly url: string;
  #endpoint: Endpoint;
  #behind: Behind;
  #front: Front;
  #door: FrontDoor;
  #closing: Promise<void> | undefined;

  constructor(endpoint: Endpoint, behind: Behind, front: Front, door: FrontDoor, url: string) {
    this.#endpoint = endpoint;
    this.#behind = behind;
    this.#front = front;
    this.#door = door;
    this.port = front.port;
    this.url = url;
  }

  async drain(options?: DrainOptions): Promise<boolean> {
    this.#front.stop();
    const isOver = await drain(options);
    await this.close();
    return isOver;
  }

  close(): Promise<void> {
    this.#closing ??= this.#close();
    return this.#closing;
  }

  async #close(): Promise<void> {
    this.#front.stop();
    await this.#endpoint.close();
    await this.#front.close(LEAVE_MS);
    this.#door.close();
    await this.#behind.close();
  }
}

/** Makes `serve` for an SDK line. */
export function serving<MakeServer, Options extends object>(line: Line<MakeServer, Options>) {
  return async function serve(options: Options & ServingOptions<MakeServer, unknown>): Promise<Serving> {
    line.check(options, 'serve()', ...OPTIONS, ...SENDERS);
    const { server, port = 3000, host = '127.0.0.1', path = '/mcp', app, reusePort = false, ...others } = options;
    const { authenticate, enableDnsRebindingProtection, allowedHosts, allowedOrigins, ...rest } = others;
    const given = rest as unknown as Options & Reporting;
    check('server', typeof server === 'function', 'a function that makes the server of each session');
    check('port', Number.isInteger(port) && port >= 0 && port <= MAX_PORT, `a whole number from 0 to ${MAX_PORT}`);
    check('path', typeof path === 'string' && /^\/[^?#]*$/.test(path), 'a path that begins with a slash');
    check('reusePort', typeof reusePort === 'boolean', 'true or false');
    check('authenticate', authenticate === undefined || typeof authenticate === 'function', 'a function');
    const { address } = await lookup(host);
    const allowed = new Allowed(address, { enableDnsRebindingProtection, allowedHosts, allowedOrigins });
    const endpoint = line.endpoint(server, given);
    const behind = new Behind();
    try {
      const other = listenerOf(app, behind.server);
      const mcp = listenerOfEndpoint(line.sdk.major, endpoint, allowed, authenticate, given.onerror);
      behind.server.on('request', (req, res) => {
        takePeer(req);
        const isMcp = req.url === path || req.url?.startsWith(`${path}?`);
        (isMcp ? mcp : other)(req, res);
      });
      await behind.listen();
      const runtime = runtimeFor(given as TransportOptions);
      const front = new Front(runtime.engine, { address, port, reusePort, app: behind.address });
      const { NodeStock, WebStock } = line.sdk;
      const hasWrappers = () => [NodeStock, WebStock].some((Stock) => isWrapped(Stock, 'handleRequest'));
      const isPassed = () => authenticate !== undefined || hasWrappers();
      const door = new FrontDoor(runtime, front, { path, ...allowed.terms }, isPassed);
      endpoint.setFront(door);
      return new Server(endpoint, behind, front, door, `http://${nameOf(host)}:${front.port}${path}`);
    } catch (error) {
      await Promise.all([endpoint.close(), behind.close()]);
      throw ours(error);
    }
  };
}

interface Reporting {
  onerror?: ((error: Error) => void) | undefined;
}

function check(name: string, isRight: boolean, must: string): void {
  if (!isRight) {
    invalid(`${name} must be ${must}`);
  }
}

/** A host as clients on this machine write it in a URL. */
function nameOf(host: string): string {
  if (host === '0.0.0.0' || host === '::') {
    return 'localhost';
  }
  return isIPv6(host) ? `[${host}]` : host;
}

/** Answers requests to the MCP endpoint. */
function listenerOfEndpoint(
  major: number,
  endpoint: Endpoint,
  allowed: Allowed,
  authenticate: Authenticate<unknown> | undefined,
  onerror: Reporting['onerror'],
): RequestListener {
  return (req: Incoming, res) => {
    const exchange = new NodeExchange(req, res);
    const refusal = allowed.refusalOf(major, exchange);
    if (refusal !== null) {
      refuse(exchange, refusal, onerror);
    } else if (authenticate === undefined) {
      void endpoint.serve(exchange);
    } else {
      void guarded(exchange, major, onerror, async () => {
        const { method = '', url = '', headers } = req;
        const user = await authenticate({ method, url, headers });
        if (user instanceof Response) {
          return sendResponse(user, res);
        }
        if (typeof user !== 'object' || user === null) {
          return exchange.whole(401, {});
        }
        req.auth = user;
        return endpoint.serve(exchange);
      });
    }
  };
}
