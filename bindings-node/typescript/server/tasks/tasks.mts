// Long calls of revision 2026-07-28 become tasks, for the clients that take them: docs/tasks.md.
import { Engine, Refusal, type Routed, type TaskRequest } from '../../native.mjs';
import type { Runtime } from '../../runtime.mjs';
import { bodyOf } from '../body.mjs';
import type { Exchange, Handlers } from '../exchange.mjs';
import { headersOf, JSON_HEADERS, refusalOf, reportFailure } from '../refusal.mjs';
import { travellingOf } from '../relayed.mjs';
import { type Identity, identify } from '../requester.mjs';
import type { FetchHandler, HandlingSdk, NodeHandlerOptions } from '../sdk.mjs';
import { type CallContext, runOf, TaskedCall } from './call.mjs';
import { Origin } from './origin.mjs';
import { TaskQuery } from './query.mjs';
import { takeQuestions } from './questions.mjs';
import { takeRoom } from './room.mjs';
import { TaskSubscription } from './subscription.mjs';

const PARAM_HEADERS = Engine.paramHeaders();
/** Only what repeats arguments is kept of a call's headers, and most calls have none of it. */
const isParam = (name: string) => name.startsWith(PARAM_HEADERS);
/** Where the server is asked first whether it makes tasks itself. */
const NEED_ANNOUNCEMENT = ['call', 'task', 'listen', 'undeclared'];
const DISCOVER = 'server/discover';
const OF_DISCOVERY = ['content-type', 'application/json', 'mcp-method', DISCOVER];
const REVISION = '2026-07-28';
/** A question of ours to the server. */
const DISCOVERY = {
  jsonrpc: '2.0',
  id: 0,
  method: DISCOVER,
  params: {
    _meta: {
      'io.modelcontextprotocol/protocolVersion': REVISION,
      'io.modelcontextprotocol/clientInfo': { name: 'tailrope', version: Engine.version() },
      'io.modelcontextprotocol/clientCapabilities': {},
    },
  },
};

/** What the tasks of one handler need of it. */
export interface TasksOptions extends NodeHandlerOptions {
  runtime: Runtime;
  identity: Identity;
  /** What serves requests of 2026-07-28. */
  modern: FetchHandler;
  /** Clients are steered to a revision that can resume. */
  steers: boolean;
  /** The SDK answers with events, unless it is told not to. */
  givesStreams: boolean;
}

/** An SDK line that knows 2026-07-28. */
type TasksSdk = HandlingSdk & { readonly Server: Parameters<typeof takeQuestions>[0] };

export class Tasks {
  #sdk: TasksSdk;
  #options: TasksOptions;
  #context: CallContext;
  #subscriptions = new Set<TaskSubscription>();
  /** Whether the server makes tasks itself; nothing while it has not said. */
  #isByHost: boolean | undefined;

  constructor(sdk: TasksSdk, options: TasksOptions) {
    this.#sdk = sdk;
    this.#options = options;
    const { runtime, modern, onerror } = options;
    const report = (what: string, error: unknown) => reportFailure(onerror, what, error);
    const internal = () => refusalOf(sdk.major, 'internal');
    this.#context = { runtime, sdk: modern, open: new Set(), report, internal };
  }

  get #engine(): Engine {
    return this.#options.runtime.engine;
  }

  /** What becomes of a POST of 2026-07-28; nothing for what is no message of a revision that is known. */
  async route(exchange: Exchange): Promise<Routed | null> {
    const routed = this.#route(exchange);
    if (routed === null || this.#isByHost !== undefined || !NEED_ANNOUNCEMENT.includes(routed.route)) {
      return routed;
    }
    await this.#discover(exchange);
    return this.#route(exchange);
  }

  #route(exchange: Exchange): Routed | null {
    const version = exchange.header('mcp-protocol-version');
    return this.#engine.routePost(version, textOf(exchange), this.#options.steers, this.#isByHost === true);
  }

  /** Asks the server whether it makes tasks itself, where no client has asked before. */
  async #discover(exchange: Exchange): Promise<void> {
    try {
      const request = Origin.of(exchange).request(new AbortController().signal, OF_DISCOVERY);
      request.headers.set('mcp-protocol-version', REVISION);
      const options = { ...(exchange.auth !== undefined && { authInfo: exchange.auth }), parsedBody: DISCOVERY };
      await this.#announced(await this.#options.modern.fetch(request, options));
    } catch (error) {
      // The request itself is going to show what is wrong.
      reportFailure(this.#options.onerror, 'whether the server makes tasks itself cannot be asked', error);
    }
  }

  /** The server's answer to `server/discover`, which announces tasks, unless the server does. */
  async #announced(response: Response): Promise<Response> {
    const { status, statusText, headers } = response;
    const answer = new Uint8Array(await response.arrayBuffer());
    const { byHost, body } = Engine.announce(headers.get('content-type'), answer);
    this.#isByHost = byHost ?? this.#isByHost;
    if (body === undefined) {
      return new Response(answer.length === 0 ? null : answer, { status, statusText, headers });
    }
    return new Response(body, { status, statusText, headers: { ...Object.fromEntries(headers), ...JSON_HEADERS } });
  }

  /** Serves what `route` said of it: `discover`, `call`, `listen`, `task` and `undeclared`. */
  async serve(exchange: Exchange, { route, tool }: Routed): Promise<void> {
    switch (route) {
      case 'discover':
        return this.#hand(exchange, async (request) => this.#announced(await this.#pass(exchange, request)));
      case 'listen':
        return this.#hand(exchange, (request) => this.#listen(exchange, request));
      case 'undeclared':
        return refused(exchange, Engine.missingCapability(textOf(exchange)));
      case 'task':
        return this.#ask(exchange);
      default:
        return this.#call(exchange, tool);
    }
  }

  /** Has an exchange answered with what the SDK makes of its request, or what we make of that. */
  #hand(exchange: Exchange, answer: (request: Request) => Promise<Response>): Promise<void> {
    const fetch: Handlers['fetch'] = async (request) => {
      try {
        return await answer(request);
      } catch (error) {
        reportFailure(this.#options.onerror, 'a request failed', error);
        const refusal = refusalOf(this.#sdk.major, 'internal', undefined, textOf(exchange));
        return new Response(refusal.body, { status: refusal.status, headers: headersOf(refusal) });
      }
    };
    return exchange.handTo({ fetch, node: this.#sdk.nodeHandler({ fetch }, this.#options) });
  }

  /** Leaves a request to the SDK. */
  #pass({ auth, parsedBody }: Exchange, request: Request): Promise<Response> {
    return this.#options.modern.fetch(request, { ...(auth !== undefined && { authInfo: auth }), parsedBody });
  }

  #call(exchange: Exchange, tool: string | undefined): Promise<void> {
    identify(exchange, this.#options.identity);
    const { runtime, givesStreams } = this.#options;
    const { server, requester } = exchange;
    const params = exchange.headersOf(isParam);
    const native = this.#engine.openCall(server, requester, textOf(exchange), tool, givesStreams, params);
    if (native === null) {
      return this.#hand(exchange, (request) => this.#pass(exchange, request));
    }
    const { key } = native;
    const call = new TaskedCall(this.#context, native, Origin.of(exchange), () => runtime.forget(key));
    runtime.wait(key, call);
    return call.answer(exchange.sink());
  }

  async #listen(exchange: Exchange, request: Request): Promise<Response> {
    identify(exchange, this.#options.identity);
    const { server, requester } = exchange;
    const native = this.#engine.subscribeToTasks(server, requester, textOf(exchange));
    if (native instanceof Refusal) {
      return new Response(native.body, { status: native.status, headers: headersOf(native) });
    }
    if (native === null) {
      return this.#pass(exchange, request);
    }
    const subscription = new TaskSubscription(this.#context, native, this.#subscriptions);
    return subscription.answer(() => this.#pass(exchange, request));
  }

  async #ask(exchange: Exchange): Promise<void> {
    const names = [exchange.header('mcp-method'), exchange.header('mcp-name')] as const;
    const asked = Engine.readTaskRequest(exchange.head(), ...names, textOf(exchange), !this.#options.givesStreams);
    if (asked instanceof Refusal) {
      return refused(exchange, asked);
    }
    identify(exchange, this.#options.identity);
    const { server, requester } = exchange;
    const travelling = this.#travelling(exchange, asked);
    const query = this.#engine.askTask(asked, server, requester, textOf(exchange), travelling);
    if (query === null) {
      return refused(exchange, asked.unknown());
    }
    const answer = await new TaskQuery(this.#context, query, Origin.of(exchange)).answer();
    return answer instanceof Refusal ? refused(exchange, answer) : exchange.whole(200, { ...JSON_HEADERS }, answer);
  }

  #travelling(exchange: Exchange, asked: TaskRequest): ReturnType<typeof travellingOf> | undefined {
    return asked.mayTravel ? travellingOf(exchange, this.#options.runtime.relayedHeaders) : undefined;
  }

  /** A server was made for a request of 2026-07-28: where it is a call of ours, its handlers can ask, and wait for its client. */
  made(made: Parameters<typeof takeQuestions>[1], request: Request | undefined): void {
    const run = request && runOf(request);
    takeQuestions(this.#sdk.Server, made, run);
    takeRoom(made, run?.asked);
  }

  /** Nobody serves the calls any more. */
  close(): void {
    [...this.#context.open].forEach((call) => call.leave());
    [...this.#subscriptions].forEach((subscription) => subscription.drain());
  }
}

/** The text of a POST that was read. */
function textOf(exchange: Exchange): string | Uint8Array {
  const read = bodyOf(exchange, 0);
  // What a parser has made is written once.
  exchange.text ??= read instanceof Promise ? '' : (read.text ?? '');
  return exchange.text;
}

/** What a client of 2026-07-28 is refused. */
function refused(exchange: Exchange, refusal: Refusal): void {
  exchange.whole(refusal.status, headersOf(refusal), refusal.body);
}
