// An event store of your own (here: files of JSON lines) under Tailrope's transport, for @modelcontextprotocol/server
// 2.x. Run it with `node own-event-store.mjs`.
//
// The class is written against the SDK's interface and knows nothing of Tailrope. What it must do: hand out ids that
// are unique and visible ASCII, keep a stream's order, and never mix two streams. Stream names that Tailrope passes in
// are unique across sessions, so no session can read another's events here.
import { randomBytes } from 'node:crypto';
import { mkdtemp, open, rm } from 'node:fs/promises';
import http from 'node:http';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { fileURLToPath } from 'node:url';

import { McpServer } from '@modelcontextprotocol/server';
import { createSessionRouter } from 'tailrope/mcp';
import * as z from 'zod';

/** The newest two files are kept, so at least this many events. */
const EVENTS_PER_FILE = 10_000;

/** Appends each event of all streams to a file and reads it back from there; only the places are in memory. */
export class JsonLinesEventStore {
  #directory;
  #eventsPerFile;
  #files = [];
  #fileCount = 0;
  /** By event id: its stream, and where its line is. A Map keeps the order in which events came. */
  #places = new Map();
  #writes = Promise.resolve();

  constructor(directory, eventsPerFile = EVENTS_PER_FILE) {
    this.#directory = directory;
    this.#eventsPerFile = eventsPerFile;
  }

  storeEvent(streamId, message) {
    // One write at a time: the lines of a file must not mix, and each has to know where it begins.
    const stored = this.#writes.then(() => this.#append(streamId, message));
    this.#writes = stored.catch(() => {});
    return stored;
  }

  async #append(streamId, message) {
    const eventId = randomBytes(16).toString('base64url');
    const line = Buffer.from(`${JSON.stringify({ eventId, streamId, message })}\n`);
    const file = await this.#writableFile();
    const { bytesWritten } = await file.handle.write(line, 0, line.length, file.size);
    if (bytesWritten < line.length) {
      // The next line is written over what is there of this one.
      throw new Error('the disk is full');
    }
    this.#places.set(eventId, { streamId, file, offset: file.size, length: line.length });
    file.size += line.length;
    file.eventIds.push(eventId);
    return eventId;
  }

  async #writableFile() {
    if (this.#files.length === 0 || this.#files.at(-1).eventIds.length >= this.#eventsPerFile) {
      const name = path.join(this.#directory, `events-${++this.#fileCount}.jsonl`);
      this.#files.push({ name, handle: await open(name, 'wx+'), size: 0, eventIds: [] });
    }
    if (this.#files.length > 2) {
      const oldest = this.#files.shift();
      oldest.eventIds.forEach((eventId) => this.#places.delete(eventId));
      await oldest.handle.close();
      await rm(oldest.name);
    }
    return this.#files.at(-1);
  }

  async getStreamIdForEventId(eventId) {
    return this.#places.get(eventId)?.streamId;
  }

  async replayEventsAfter(lastEventId, { send }) {
    const last = this.#places.get(lastEventId);
    if (last === undefined) {
      throw new Error('no such event');
    }
    let isAfter = false;
    for (const [eventId, place] of [...this.#places]) {
      // A priming event is stored as an empty message, because a client may resume from it; it is not repeated.
      if (isAfter && place.streamId === last.streamId) {
        const { message } = await this.#read(place);
        if (message.jsonrpc !== undefined) {
          await send(eventId, message);
        }
      }
      isAfter ||= eventId === lastEventId;
    }
    return last.streamId;
  }

  async #read({ file, offset, length }) {
    const { buffer } = await file.handle.read(Buffer.alloc(length), 0, length, offset);
    return JSON.parse(buffer.toString());
  }
}

function buildServer() {
  const server = new McpServer({ name: 'reports', version: '1.0.0' });
  const description = 'Build a report page by page, without keeping a connection open all the while.';
  const inputSchema = z.object({ pages: z.number().int() });
  server.registerTool('build_report', { description, inputSchema }, async ({ pages }, ctx) => {
    const progressToken = ctx.mcpReq._meta?.progressToken;
    for (let page = 1; page <= pages; page++) {
      await sleep(50);
      if (progressToken !== undefined) {
        const params = { progressToken, progress: page, total: pages, message: `page ${page}` };
        await ctx.mcpReq.notify({ method: 'notifications/progress', params });
      }
      if (page === Math.floor(pages / 2)) {
        // The client comes back by itself, here after half a second, and is sent what it missed.
        ctx.http.closeSSE?.({ retryMs: 500 });
      }
    }
    return { content: [{ type: 'text', text: `${pages} pages` }] };
  });
  return server;
}

/** A server with one store for all its sessions. */
function serverWith(eventStore) {
  const router = createSessionRouter(buildServer, { eventStore });
  return http.createServer(router.node);
}

// Who imports the store wants no server.
if (process.argv[1] === fileURLToPath(import.meta.url)) {
  const directory = process.env.EVENTS_DIR ?? (await mkdtemp(path.join(tmpdir(), 'events-')));
  const server = serverWith(new JsonLinesEventStore(directory));
  server.listen(Number(process.env.PORT ?? 3000), '127.0.0.1', () => {
    console.log(`http://127.0.0.1:${server.address().port}/mcp`);
  });
}
