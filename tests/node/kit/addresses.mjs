// The event stores that outlive a process, and where the tests find them.
import { randomUUID } from 'node:crypto';
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';

const { TAILROPE_TEST_REDIS: redis, TAILROPE_TEST_POSTGRES: postgres } = process.env;
/** The same server, in a namespace of each test's own. */
const own = (address) => `${address}${address.includes('?') ? '&' : '?'}namespace=t${randomUUID().slice(0, 8)}`;

/** A folder that goes with its test. */
export function folderFor(t) {
  const folder = mkdtempSync(join(tmpdir(), 'tailrope-'));
  t.after(() => rmSync(folder, { recursive: true, force: true, maxRetries: 5, retryDelay: 100 }));
  return folder;
}

/** By kind: `address(t)` is a store for one test. */
export const DURABLE = [
  { kind: 'sqlite', address: (t) => `sqlite:${join(folderFor(t), 'events.db')}` },
  ...(redis ? [{ kind: 'redis', address: () => own(redis) }] : []),
  ...(postgres ? [{ kind: 'postgres', address: () => own(postgres) }] : []),
];
