// The transports that take the place of the SDKs' classes, for both SDK lines.
import { setImmediate } from 'node:timers';

import { NodeExchange } from './node-exchange.mjs';
import { isStock } from './seam.mjs';
import { SessionServer } from './session-server.mjs';
import { WebExchange } from './web-exchange.mjs';

/**
 * Makes a subclass of an SDK's transport whose sessions are served on the engine. Without
 * `sessionIdGenerator` (stateless mode) it is the SDK's class: there is nothing to resume.
 *
 * `sdk` is what differs between the SDK lines; `handle` answers one request, and what `stockHandler` makes one of
 * stateless mode.
 */
function resumable(Stock, sdk, handle, stockHandler = (_transport, handleRequest) => handleRequest) {
  return class ResumableTransport extends Stock {
    #sessions;
    #stock;

    constructor(options = {}) {
      super(options);
      this.#stock = stockHandler(this, (...args) => super.handleRequest(...args), options);
      if (options.sessionIdGenerator !== undefined && !isStock(sdk)) {
        this.#sessions = new SessionServer(this, sdk, options);
      }
    }

    get sessionId() {
      return this.#sessions === undefined ? super.sessionId : this.#sessions.sessionId;
    }

    set sessionId(value) {
      // Stateless: the SDK's class keeps its own.
      super.sessionId = value;
    }

    setSupportedProtocolVersions(versions) {
      super.setSupportedProtocolVersions?.(versions);
      this.#sessions?.setVersions(versions);
    }

    setScopeChallengeResolver(resolver) {
      super.setScopeChallengeResolver?.(resolver);
      this.#sessions?.setScopeChallengeResolver(resolver);
    }

    handleRequest(...args) {
      return this.#sessions === undefined ? this.#stock(...args) : handle(this.#sessions, ...args);
    }

    async send(message, options) {
      return this.#sessions === undefined ? super.send(message, options) : this.#sessions.send(message, options);
    }

    closeSSEStream(requestId, options) {
      if (this.#sessions === undefined) {
        super.closeSSEStream(requestId);
      } else {
        this.#sessions.closeConnection(requestId, options);
      }
    }

    closeStandaloneSSEStream(options) {
      if (this.#sessions === undefined) {
        super.closeStandaloneSSEStream();
      } else {
        this.#sessions.closeStandalone(options);
      }
    }

    async close() {
      this.#sessions?.close();
      // Also where the engine serves: the SDK's class calls `onclose`, once.
      return super.close();
    }
  };
}

const serveNode = (sessions, req, res, parsedBody) => sessions.serve(new NodeExchange(req, res, parsedBody));

/** For the SDKs' transports of node:http. */
export function resumableNode(Stock, sdk) {
  return resumable(Stock, sdk, serveNode);
}

/** For node:http, where the SDK's class for that is in a package that need not be there. */
export function resumableNodeOverWeb(Stock, sdk) {
  return resumable(Stock, sdk, serveNode, (transport, handleRequest, { maxRequestBodySize }) => {
    const onerror = (error) => transport.onerror?.(error);
    return (req, res, parsedBody) => {
      const fetch = async (...args) => {
        const response = await handleRequest(...args);
        // The SDK's handler holds the head back until there is a body, which may be long after: its class does not.
        setImmediate(() => res.headersSent && !res.writableEnded && res.flushHeaders());
        return response;
      };
      return sdk.nodeHandler({ fetch }, { maxRequestBodySize, onerror })(req, res, parsedBody);
    };
  });
}

/** For the SDKs' web-standard transports. */
export function resumableWeb(Stock, sdk) {
  return resumable(Stock, sdk, (sessions, request, options) => {
    const exchange = new WebExchange(request, options);
    sessions.serve(exchange).catch((error) => exchange.fail(error));
    return exchange.response;
  });
}

/** For hosts that make the exchanges themselves; never stock. */
export function resumableExchange(Stock, sdk) {
  return resumable(Stock, sdk, (sessions, exchange) => sessions.serve(exchange));
}
