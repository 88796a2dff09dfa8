// Handlers wait for clients that read slowly, as long as their call is no task. The SDK's own stream takes all that it is given.
import type { McpServer, Server, Transport } from '@modelcontextprotocol/server';

/** What knows whether something waits for a client. */
export interface Room {
  /** Resolves when there is room again; nothing where there is. */
  readonly room: Promise<void> | undefined;
}

const ROOM = Symbol('tailrope.room');

/** A server that may serve calls: where these are answered. A property costs each call less than a `WeakMap`. */
interface Prepared {
  [ROOM]?: Room | undefined;
}

/** The server that a factory made sends only where there is room. */
export function takeRoom(made: McpServer | Server, room: Room | undefined): void {
  const server: Server & Prepared = 'server' in made ? made.server : made;
  const isPrepared = ROOM in server;
  // A factory may give the same one again.
  if (room !== undefined || isPrepared) {
    server[ROOM] = room;
  }
  if (room !== undefined && !isPrepared) {
    const { connect } = server;
    server.connect = (transport) => {
      const now = server[ROOM];
      if (now !== undefined) {
        holdBack(transport, now);
      }
      return connect.call(server, transport);
    };
  }
}

/** Has what is sent wait for room, in order; also the answer of the call. */
function holdBack(transport: Transport, where: Room): void {
  const send = transport.send.bind(transport);
  let last: Promise<void> | undefined;
  transport.send = (message, options) => {
    if (last === undefined && where.room === undefined) {
      return send(message, options);
    }
    const before = last;
    const sent = (async () => {
      await before?.catch(() => {});
      while (where.room !== undefined) {
        await where.room;
      }
      await send(message, options);
    })();
    last = sent;
    return sent;
  };
}
