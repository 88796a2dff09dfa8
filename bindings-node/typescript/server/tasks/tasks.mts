// Long calls of revision 2026-07-28 become tasks, for the clients that take them: docs/tasks.md.
import { Engine, Refusal, type Routed, type TaskRequest } from '../../native.mjs';
import type { Runtime } from '../../runtime.mjs';
import { bodyOf } from '../body.mjs';
import type { Exchange, Handlers } from '../exchange.mjs';
import { refusalOf, reportFailure } from '../refusal.mjs';
import { travellingOf } from '../relayed.mjs';
import { type Identity, identify } from '../requester.mjs';
import type { FetchHandler, HandlingSdk, NodeHandlerOptions } from '../sdk.mjs';
import { type CallContext, runOf, TaskedCall } from './call.mjs';
import { Origin } from './origin.mjs';
import { TaskQuery } from './query.mjs';
import { takeQuestions } from './questions.mjs';
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
    const internal = () => responseOf(refusalOf(sdk.major, 'internal'));
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
      const { headers, url } = exchange.webRequest();
      const origin = new Origin(url, headers, exchange.auth);
      const request = origin.request(new AbortController().signal, OF_DISCOVERY);
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
  serve(exchange: Exchange, routed: Routed): Promise<void> {
    const answer = async (request: Request) => {
      try {
        return await this.#answer(exchange, routed, request);
      } catch (error) {
        reportFailure(this.#options.onerror, 'a request failed', error);
        return responseOf(refusalOf(this.#sdk.major, 'internal', undefined, textOf(exchange)));
      }
    };
    const fetch: Handlers['fetch'] = answer;
    return exchange.handTo({ fetch, node: this.#sdk.nodeHandler({ fetch }, this.#options) });
  }

  async #answer(exchange: Exchange, { route, tool }: Routed, request: Request): Promise<Response> {
    switch (route) {
      case 'discover':
        return this.#announced(await this.#pass(exchange, request));
      case 'undeclared':
        return responseOf(Engine.missingCapability(textOf(exchange)));
      case 'task':
        return this.#ask(exchange, request);
      case 'listen':
        return this.#listen(exchange, request);
      default:
        return this.#call(exchange, request, tool);
    }
  }

  /** Leaves a request to the SDK. */
  #pass({ auth, parsedBody }: Exchange, request: Request): Promise<Response> {
    return this.#options.modern.fetch(request, { ...(auth !== undefined && { authInfo: auth }), parsedBody });
  }

  #call(exchange: Exchange, request: Request, tool: string | undefined): Promise<Response> {
    identify(exchange, this.#options.identity);
    const { runtime, givesStreams } = this.#options;
    const { server, requester } = exchange;
    const native = this.#engine.openCall(
      server,
      requester,
      textOf(exchange),
      tool,
      givesStreams,
      exchange.headersOf(isParam),
    );
    if (native === null) {
      return this.#pass(exchange, request);
    }
    const { key } = native;
    const call = new TaskedCall(this.#context, native, Origin.of(request, exchange.auth), () => runtime.forget(key));
    runtime.wait(key, call);
    return call.answer(request);
  }

  async #listen(exchange: Exchange, request: Request): Promise<Response> {
    identify(exchange, this.#options.identity);
    const { server, requester } = exchange;
    const native = this.#engine.subscribeToTasks(server, requester, textOf(exchange));
    if (native instanceof Refusal) {
      return responseOf(native);
    }
    if (native === null) {
      return this.#pass(exchange, request);
    }
    const subscription = new TaskSubscription(this.#context, native, this.#subscriptions);
    return subscription.answer(() => this.#pass(exchange, request));
  }

  async #ask(exchange: Exchange, request: Request): Promise<Response> {
    const names = [exchange.header('mcp-method'), exchange.header('mcp-name')] as const;
    const asked = Engine.readTaskRequest(exchange.head(), ...names, textOf(exchange), !this.#options.givesStreams);
    if (asked instanceof Refusal) {
      return responseOf(asked);
    }
    identify(exchange, this.#options.identity);
    const { server, requester } = exchange;
    const travelling = this.#travelling(exchange, asked);
    const query = this.#engine.askTask(asked, server, requester, textOf(exchange), travelling);
    if (query === null) {
      return responseOf(asked.unknown());
    }
    const answer = await new TaskQuery(this.#context, query, Origin.of(request, exchange.auth)).answer();
    return answer instanceof Refusal ? responseOf(answer) : new Response(answer, { headers: JSON_HEADERS });
  }

  #travelling(exchange: Exchange, asked: TaskRequest): ReturnType<typeof travellingOf> | undefined {
    return asked.mayTravel ? travellingOf(exchange, this.#options.runtime.relayedHeaders) : undefined;
  }

  /** A server was made for a request of 2026-07-28: where it is a call of ours, its handlers can ask. */
  made(made: Parameters<typeof takeQuestions>[1], request: Request | undefined): void {
    takeQuestions(this.#sdk.Server, made, request && runOf.get(request));
  }

  /** Nobody serves the calls any more. */
  close(): void {
    [...this.#context.open].forEach((call) => call.leave());
    [...this.#subscriptions].forEach((subscription) => subscription.drain());
  }
}

const JSON_HEADERS = { 'content-type': 'application/json' };

/** The text of a POST that was read. */
function textOf(exchange: Exchange): string | Uint8Array {
  const read = bodyOf(exchange, 0);
  return read instanceof Promise ? '' : (read.text ?? '');
}

function responseOf({ status, allow, body, retryAfterS }: Refusal): Response {
  const more = { ...(allow && { allow }), ...(retryAfterS && { 'retry-after': String(retryAfterS) }) };
  return new Response(body, { status, headers: { ...JSON_HEADERS, ...more } });
}
