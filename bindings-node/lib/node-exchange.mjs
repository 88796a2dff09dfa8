// One HTTP exchange of node:http: what is read from an IncomingMessage and written to a ServerResponse.
import { Answer } from './answer.mjs';
import { bodyText, hostOf, requestInfoOf, webRequest } from './request.mjs';

export class NodeExchange {
  face = 'node';
  #req;
  #res;
  /** What was made of the body in front of the transport, and its text where that is at hand. */
  parsedBody;
  text;
  /** What is known of who sends it. */
  asker;

  constructor(req, res, parsedBody, text) {
    this.#req = req;
    this.#res = res;
    this.parsedBody = parsedBody;
    this.text = text;
  }

  get method() {
    return this.#req.method;
  }

  get auth() {
    return this.#req.auth;
  }

  /** What authentication in front of the endpoint left of the user: of the SDK's kind, or of passport's. */
  get user() {
    return this.#req.auth ?? this.#req.user;
  }

  get request() {
    return this.#req;
  }

  get host() {
    return hostOf(this.#req);
  }

  header(name) {
    return this.#req.headers[name];
  }

  /** The parts of the head that the engine looks at. */
  head() {
    const { method, headers } = this.#req;
    return {
      method,
      accept: headers.accept,
      contentType: headers['content-type'],
      protocolVersion: headers['mcp-protocol-version'],
      sessionId: headers['mcp-session-id'],
      lastEventId: headers['last-event-id'],
      asker: this.asker,
    };
  }

  /** Reads the body: its `text`, `tooLarge`, or `gone` when the peer left. */
  readBody(maxBytes) {
    const req = this.#req;
    if (Number(req.headers['content-length']) > maxBytes) {
      return this.#refuseRest();
    }
    if (req.readableEnded) {
      return { text: '' };
    }
    if (req.destroyed) {
      // The peer left before anybody listened: there is no event left that would say so.
      return { gone: true };
    }
    return new Promise((resolve) => {
      const chunks = [];
      let size = 0;
      const settle = (result) => {
        req.off('data', onData).off('end', onEnd).off('close', onGone).off('error', onGone);
        resolve(result);
      };
      const onData = (chunk) => {
        size += chunk.length;
        if (size > maxBytes) {
          req.pause();
          settle(this.#refuseRest());
        } else {
          chunks.push(chunk);
        }
      };
      const onEnd = () => settle({ text: bodyText(chunks) });
      const onGone = () => settle({ gone: true });
      req.on('data', onData).on('end', onEnd).on('close', onGone).on('error', onGone);
    });
  }

  #refuseRest() {
    if (this.#req.httpVersionMajor < 2) {
      this.#res.setHeader('connection', 'close');
    }
    return { tooLarge: true };
  }

  /** Answers with what is known as a whole. */
  whole(status, headers, body = '') {
    if (!this.#res.destroyed && !this.#res.headersSent) {
      writeWhole(this.#res, status, headers, body);
    }
  }

  /** Answers with what a connection of the engine carries. */
  stream(connection, session, headFirst) {
    const answer = new NodeAnswer(connection, session, headFirst, this.#res);
    answer.start();
    return answer;
  }

  onGone(callback) {
    this.#res.on('close', callback);
  }

  /** Leaves the answer to a handler. */
  handTo({ node }) {
    return node(this.#req, this.#res, this.parsedBody);
  }

  /** The exchange is over without an answer: nobody is left to get one. */
  abandon() {}

  /** `ctx.http.req` of the 2.x SDK. */
  webRequest() {
    return webRequest(this.#req);
  }

  /** `extra.requestInfo` of the 1.x SDK. */
  requestInfo() {
    return requestInfoOf(this.#req);
  }
}

class NodeAnswer extends Answer {
  #res;

  constructor(connection, session, headFirst, res) {
    super(connection, session, headFirst);
    this.#res = res;
  }

  open() {
    const res = this.#res;
    res.on('close', this.#lost);
    res.on('error', this.#lost);
    res.on('drain', this.#drained);
    return !(res.destroyed || res.socket?.destroyed);
  }

  head(status, contentType) {
    this.#res.writeHead(status, this.headers(contentType));
  }

  flush() {
    this.#res.flushHeaders();
  }

  write(data) {
    return this.#res.write(data);
  }

  end(data) {
    this.#res.end(data);
  }

  whole(status, contentType, data = '') {
    writeWhole(this.#res, status, this.headers(contentType), data);
  }

  fail() {
    this.#res.destroy();
  }

  release() {
    // `error` stays: a late one has to find a listener.
    this.#res.off('close', this.#lost);
    this.#res.off('drain', this.#drained);
  }

  #lost = () => this.lost();
  #drained = () => this.writable();

  headers(contentType) {
    const headers = super.headers(contentType);
    if (contentType === 'text/event-stream' && this.#res.req.httpVersionMajor < 2) {
      headers.connection = 'keep-alive';
    }
    return headers;
  }
}

/** An answer that is known as a whole leaves in one write. */
function writeWhole(res, status, headers, body) {
  if (status !== 204) {
    headers['content-length'] = Buffer.byteLength(body);
  }
  res.writeHead(status, headers);
  res.end(body);
}
