// One handler for both eras of the protocol, for users of the SDK's createMcpHandler.
import { invalid } from './open-store.mjs';
import { writeRefusal } from './refusal.mjs';
import { SessionRouter, faces } from './router.mjs';
import { isStock } from './seam.mjs';
import { noteHandler } from './status.mjs';
import { runtimeFor } from './store.mjs';

const LIST_CHANGES = {
  tools_list_changed: { capability: 'tools', send: 'sendToolListChanged' },
  prompts_list_changed: { capability: 'prompts', send: 'sendPromptListChanged' },
  resources_list_changed: { capability: 'resources', send: 'sendResourceListChanged' },
};

/** Makes `createResumableMcpHandler` for an SDK that has `createMcpHandler`. */
export function resumableHandler(sdk) {
  return function createResumableMcpHandler(factory, options = {}) {
    if (isStock(sdk)) {
      const stock = sdk.createMcpHandler(factory, options);
      return { ...stock, node: sdk.nodeHandler(stock) };
    }
    return new Handler(factory, options, sdk).faces();
  };
}

class Handler {
  #sdk;
  #router;
  #modern;
  #modernNode;
  #preferResumable;
  #runtime;
  #unsubscribe;
  #forget;
  #closed = false;

  constructor(factory, { preferResumable = false, legacy, ...options }, sdk) {
    if (legacy !== undefined) {
      throw new TypeError('createResumableMcpHandler serves the older revisions itself: it has no option `legacy`');
    }
    if (typeof preferResumable !== 'boolean') {
      invalid('preferResumable must be true or false');
    }
    const { onerror, maxRequestBodySize } = options;
    this.#sdk = sdk;
    this.#preferResumable = preferResumable;
    this.#modern = sdk.createMcpHandler(factory, { ...options, legacy: 'reject' });
    this.#modernNode = sdk.nodeHandler(this.#modern, { onerror, maxRequestBodySize });
    this.#router = new SessionRouter(sdk, factory, options);
    this.#runtime = runtimeFor(options.eventStore);
    this.#unsubscribe = this.#modern.bus.subscribe((event) => this.#listChanged(event));
    this.#forget = noteHandler(preferResumable);
  }

  faces() {
    return {
      ...faces((exchange) => this.#serve(exchange)),
      notify: this.#modern.notify,
      bus: this.#modern.bus,
      close: () => this.#close(),
    };
  }

  #serve(exchange) {
    return this.#router.serve(exchange, () => (this.#closed ? this.#leave(exchange) : this.#route(exchange)));
  }

  /** Leaves a request to the SDK. */
  #leave(exchange) {
    return exchange.handTo({ fetch: this.#modern.fetch, node: this.#modernNode });
  }

  /** Answers with a session of ours, or leaves the request to the SDK: what is of 2026-07-28 is the SDK's. */
  async #route(exchange) {
    if (exchange.method === 'POST') {
      if (!this.#sdk.isJsonContentType(exchange.header('content-type'))) {
        return this.#leave(exchange);
      }
      if (!(await this.#router.read(exchange))) {
        return undefined;
      }
      if (exchange.parsedBody !== undefined) {
        const route = this.#classify(exchange);
        if (route.kind === 'modern') {
          const revision = route.classification.revision ?? 'unknown';
          if (this.#preferResumable) {
            return this.#steer(exchange, revision);
          }
          this.#runtime.engine.leftToSdk(revision);
        }
        if (route.kind !== 'legacy') {
          return this.#leave(exchange);
        }
      }
    }
    return this.#router.route(exchange);
  }

  #classify(exchange) {
    return this.#sdk.classifyInboundRequest({
      httpMethod: exchange.method,
      protocolVersionHeader: exchange.header('mcp-protocol-version'),
      mcpMethodHeader: exchange.header('mcp-method'),
      mcpNameHeader: exchange.header('mcp-name'),
      body: exchange.parsedBody,
    });
  }

  /** Names the revisions that can resume, so that a client of both eras falls back to `initialize`. */
  #steer(exchange, revision) {
    const refusal = this.#runtime.engine.steer(exchange.text ?? JSON.stringify(exchange.parsedBody), revision);
    this.#router.report(new Error(refusal.message));
    writeRefusal(exchange, refusal);
  }

  /** What `notify` publishes reaches the clients of sessions too. */
  #listChanged({ kind }) {
    const change = LIST_CHANGES[kind];
    if (change === undefined) {
      return;
    }
    for (const made of this.#router.servers()) {
      const server = made.server ?? made;
      if (server.getCapabilities?.()[change.capability]?.listChanged) {
        server[change.send]().catch((error) => this.#router.report(error));
      }
    }
  }

  async #close() {
    this.#closed = true;
    this.#unsubscribe();
    this.#forget();
    await Promise.all([this.#modern.close(), this.#router.close()]);
  }
}
