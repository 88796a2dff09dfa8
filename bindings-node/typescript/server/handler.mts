// One handler for both eras of the protocol, for users of the SDK's createMcpHandler.

import type { IncomingMessage, ServerResponse } from 'node:http';
import type * as server from '@modelcontextprotocol/server';
import type {
  AuthInfo,
  CreateMcpHandlerOptions,
  McpHttpHandler,
  McpRequestContext,
  McpServerFactory,
  ServerEvent,
  WebStandardStreamableHTTPServerTransportOptions,
} from '@modelcontextprotocol/server';

import { invalid } from '../errors.mjs';
import { callHost } from '../host.mjs';
import type { Routed } from '../native.mjs';
import { SESSION_OPTIONS } from '../option-names.mjs';
import type { Runtime } from '../runtime.mjs';
import { noteHandler } from '../status.mjs';
import { runtimeFor } from '../store/event-store.mjs';
import { hasLostId, namingBody } from './body.mjs';
import type { Exchange, Face, Handlers } from './exchange.mjs';
import type { FrontDoor } from './front-door.mjs';
import { answer, refusalOf } from './refusal.mjs';
import { type AdoptingOptions, faces, SessionRouter } from './router.mjs';
import type { FetchHandler, HandlingSdk, NodeHandler, StockClass } from './sdk.mjs';
import { checkGiven, type Names, ofSessions, only, readBy } from './sdk-options.mjs';
import { isStock } from './seam.mjs';
import { Tasks } from './tasks/tasks.mjs';
import { identityOf, type OwnOptions } from './transport-options.mjs';

interface ListChange {
  capability: 'tools' | 'prompts' | 'resources';
  send: 'sendToolListChanged' | 'sendPromptListChanged' | 'sendResourceListChanged';
}

const LIST_CHANGES: { [Kind in ServerEvent['kind']]?: ListChange } = {
  tools_list_changed: { capability: 'tools', send: 'sendToolListChanged' },
  prompts_list_changed: { capability: 'prompts', send: 'sendPromptListChanged' },
  resources_list_changed: { capability: 'resources', send: 'sendResourceListChanged' },
};

/** An SDK line that has `createMcpHandler`. */
export type HandlerSdk = HandlingSdk<McpRequestContext> &
  Pick<typeof server, 'Server' | 'classifyInboundRequest' | 'createMcpHandler' | 'isJsonContentType'>;

/** What a factory makes. */
type Made = Awaited<ReturnType<McpServerFactory>>;

/** The options of the SDK's `createMcpHandler`, and those of the transport that serves the sessions. */
export interface ResumableMcpHandlerOptions
  extends Omit<CreateMcpHandlerOptions, 'legacy'>,
    OwnOptions,
    AdoptingOptions<Made>,
    Pick<
      WebStandardStreamableHTTPServerTransportOptions,
      | 'enableJsonResponse'
      | 'eventStore'
      | 'onsessionclosed'
      | 'onsessioninitialized'
      | 'retryInterval'
      | 'sessionIdGenerator'
    > {
  /**
   * Refuses requests of 2026-07-28 (400, -32022) and names the older revisions, so that clients fall back to 2025-11-25. With false
   * the SDK serves them. Those of clients that take tasks the SDK always serves: docs/tasks.md. Default true.
   */
  preferResumable?: boolean;
}

export interface ResumableMcpHandler extends McpHttpHandler {
  /**
   * Serves node:http, and what is built on it, without a detour over the web platform's classes.
   */
  node: (req: IncomingMessage & { auth?: AuthInfo }, res: ServerResponse, parsedBody?: unknown) => Promise<void>;
}

/** Makes `createResumableMcpHandler` for an SDK that has `createMcpHandler`. */
export function resumableHandler(sdk: HandlerSdk, transports: Record<Face, StockClass>) {
  return function createResumableMcpHandler(
    factory: McpServerFactory,
    options: ResumableMcpHandlerOptions = {},
  ): ResumableMcpHandler {
    return new Handler(factory, options, sdk, transports).faces();
  };
}

/** Refuses options that a handler has not, and gives the names of the SDK's. `more` are those that only this place takes. */
export function checkHandlerOptions(sdk: HandlerSdk, options: object, of: string, ...more: readonly string[]): Names {
  const names = readBy((options) => sdk.createMcpHandler(noServer, options).close());
  checkGiven(options, names, of, 'preferResumable', 'onAdopted', ...SESSION_OPTIONS, ...more);
  return names;
}

function noServer(): never {
  throw new Error('only its options are looked at');
}

export class Handler {
  #sdk: HandlerSdk;
  #router: SessionRouter<Made, McpRequestContext>;
  #modern: McpHttpHandler;
  #modernNode: NodeHandler;
  #preferResumable: boolean;
  #runtime: Runtime;
  #tasks: Tasks;
  #unsubscribe: () => void;
  #forget: () => void;
  /** Every request is left to the SDK: its own classes serve, or the handler is closed. */
  #leavesAll: boolean;

  constructor(
    factory: McpServerFactory,
    { preferResumable = true, legacy, ...options }: ResumableMcpHandlerOptions & { legacy?: unknown },
    sdk: HandlerSdk,
    transports: Record<Face, StockClass>,
  ) {
    const names = checkHandlerOptions(sdk, options, 'createResumableMcpHandler()');
    if (legacy !== undefined) {
      invalid('createResumableMcpHandler serves the older revisions itself: it has no option `legacy`');
    }
    if (typeof preferResumable !== 'boolean') {
      invalid('preferResumable must be true or false');
    }
    const { onerror, maxRequestBodySize } = options;
    this.#sdk = sdk;
    this.#leavesAll = isStock(sdk);
    this.#preferResumable = preferResumable && !this.#leavesAll;
    const make: McpServerFactory = async (context) => {
      const made = await factory(context);
      this.#tasks.made(made, context.requestInfo);
      return made;
    };
    this.#modern = sdk.createMcpHandler(this.#leavesAll ? factory : make, {
      ...only(options, names),
      ...(!this.#leavesAll && { legacy: 'reject' }),
    });
    this.#modernNode = sdk.nodeHandler(this.#modern, { onerror, maxRequestBodySize });
    this.#router = new SessionRouter(sdk, factory, ofSessions(options), transports);
    const runtime = runtimeFor(options);
    this.#runtime = runtime;
    this.#tasks = new Tasks(sdk, {
      runtime,
      identity: identityOf(runtime, options),
      modern: this.#modern as FetchHandler,
      steers: this.#preferResumable,
      givesStreams: options.responseMode !== 'json',
      onerror,
      maxRequestBodySize,
    });
    this.#unsubscribe = this.#modern.bus.subscribe((event) => this.#listChanged(event));
    this.#forget = noteHandler(this.#preferResumable);
  }

  faces(): ResumableMcpHandler {
    return {
      ...faces((exchange) => this.serve(exchange)),
      notify: this.#modern.notify,
      bus: this.#modern.bus,
      close: () => this.close(),
    };
  }

  setFront(front: FrontDoor): void {
    this.#router.setFront(front);
  }

  serve(exchange: Exchange): Promise<void> {
    return this.#router.serve(exchange, () => (this.#leavesAll ? this.#leave(exchange) : this.#route(exchange)));
  }

  /** Leaves a request to the SDK. */
  #leave(exchange: Exchange): Promise<void> {
    return exchange.handTo({ fetch: this.#modern.fetch as Handlers['fetch'], node: this.#modernNode });
  }

  /** Answers with a session of ours, or leaves the request to the SDK: what is of 2026-07-28 is the SDK's. */
  async #route(exchange: Exchange): Promise<void> {
    if (exchange.method === 'POST') {
      if (!this.#sdk.isJsonContentType(exchange.header('content-type'))) {
        return this.#leave(exchange);
      }
      if (!(await this.#router.read(exchange))) {
        return undefined;
      }
      if (exchange.parsedBody !== undefined) {
        if (hasLostId(exchange.parsedBody)) {
          // The SDK would answer it by the id that JavaScript has made of it.
          return this.#router.refuse(
            exchange,
            refusalOf(this.#sdk.major, 'invalid_message', undefined, namingBody(exchange)),
          );
        }
        // What is in a session says so, and the engine's word on a call costs less than the SDK's.
        const isInSession = exchange.header('mcp-session-id') !== undefined;
        const routed = isInSession ? undefined : await this.#tasks.route(exchange);
        if (routed?.route === 'call') {
          return this.#tasks.serve(exchange, routed);
        }
        const outcome = this.#classify(exchange);
        if (outcome.kind !== 'legacy') {
          return this.#routeModern(
            exchange,
            outcome,
            routed === undefined ? await this.#tasks.route(exchange) : routed,
          );
        }
      }
    }
    return this.#router.route(exchange);
  }

  /** Answers a POST of 2026-07-28, or what claims to be one. */
  async #routeModern(
    exchange: Exchange,
    outcome: server.InboundClassificationOutcome,
    routed: Routed | null,
  ): Promise<void> {
    if (routed?.route === 'task') {
      return this.#tasks.serve(exchange, routed);
    }
    if (outcome.kind !== 'modern') {
      return this.#leave(exchange);
    }
    const revision = outcome.classification.revision ?? 'unknown';
    const { route = this.#preferResumable ? 'steer' : 'pass', takesTasks = false } = routed ?? {};
    if (route === 'steer') {
      return this.#steer(exchange, revision);
    }
    const isOurs = route === 'call' || route === 'listen' || route === 'undeclared';
    if (!this.#preferResumable && !takesTasks && !isOurs) {
      this.#runtime.engine.noteUnresumable(revision);
    }
    return routed !== null && (isOurs || route === 'discover')
      ? this.#tasks.serve(exchange, routed)
      : this.#leave(exchange);
  }

  #classify(exchange: Exchange): server.InboundClassificationOutcome {
    return this.#sdk.classifyInboundRequest({
      httpMethod: exchange.method,
      protocolVersionHeader: exchange.header('mcp-protocol-version'),
      mcpMethodHeader: exchange.header('mcp-method'),
      mcpNameHeader: exchange.header('mcp-name'),
      body: exchange.parsedBody,
    });
  }

  /** Names the revisions that can resume, so that a client of both eras falls back to `initialize`. */
  #steer(exchange: Exchange, revision: string): void {
    answer(exchange, this.#runtime.engine.steer(namingBody(exchange) ?? '', revision));
  }

  /** What `notify` publishes reaches the clients of sessions too. */
  #listChanged({ kind }: ServerEvent): void {
    const change = LIST_CHANGES[kind];
    if (change === undefined) {
      return;
    }
    for (const made of this.#router.servers()) {
      const server = 'server' in made ? made.server : made;
      if (server.getCapabilities?.()[change.capability]?.listChanged) {
        callHost(
          () => server[change.send](),
          (error) => this.#router.report(error),
        );
      }
    }
  }

  async close(): Promise<void> {
    this.#leavesAll = true;
    this.#unsubscribe();
    this.#forget();
    this.#tasks.close();
    await Promise.all([this.#modern.close(), this.#router.close()]);
  }
}
