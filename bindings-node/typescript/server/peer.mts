// Who is at the other end of the connection of which the front passes a request on.
import type { IncomingMessage } from 'node:http';

/** The header in which the front says it, and which nobody else can send: see `Behind`. */
const PEER = 'x-tailrope-peer';

/** Takes the header away, and has the request's socket say what it would say if the client were connected to it. */
export function takePeer(req: IncomingMessage): void {
  const { headers, headersDistinct, rawHeaders } = req;
  const peer = headers[PEER];
  delete headers[PEER];
  delete headersDistinct[PEER];
  for (let at = rawHeaders.length - 2; at >= 0; at -= 2) {
    if (rawHeaders[at].toLowerCase() === PEER) {
      rawHeaders.splice(at, 2);
    }
  }
  const [, v6, v4, port] = /^(?:\[(.+)\]|([^:]+)):(\d+) /.exec(String(peer)) ?? [];
  const address = v6 ?? v4;
  if (address !== undefined) {
    const facts = {
      remoteAddress: address,
      remotePort: Number(port),
      remoteFamily: v6 === undefined ? 'IPv4' : 'IPv6',
    };
    for (const [name, value] of Object.entries(facts)) {
      // A connection of the front's carries requests of several clients, one after the other.
      Object.defineProperty(req.socket, name, { value, configurable: true });
    }
  }
}
