// The HTTP server of this process behind the front: on a socket that only this user can reach, where there are such sockets.
import { rmSync } from 'node:fs';
import { mkdtemp } from 'node:fs/promises';
import { createServer, type Server } from 'node:http';
import type { AddressInfo } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';

export class Behind {
  readonly server: Server = createServer();
  /** The path of its socket, or `host:port`. */
  address = '';
  #folder: string | undefined;
  #remove = () => {
    if (this.#folder !== undefined) {
      rmSync(this.#folder, { recursive: true, force: true });
    }
  };

  constructor() {
    // The front decides how long it keeps a connection: it would send a request on one that ends here.
    this.server.keepAliveTimeout = 0;
  }

  async listen(): Promise<void> {
    if (process.platform === 'win32') {
      await this.#listen({ host: '127.0.0.1', port: 0 });
      this.address = `127.0.0.1:${(this.server.address() as AddressInfo).port}`;
      return;
    }
    // Nobody else may look into a folder that this makes.
    this.#folder = await mkdtemp(join(tmpdir(), 'tailrope-'));
    process.once('exit', this.#remove);
    this.address = join(this.#folder, 'app');
    await this.#listen({ path: this.address });
  }

  #listen(where: { path: string } | { host: string; port: number }): Promise<void> {
    return new Promise((resolve, reject) => {
      this.server.once('error', reject);
      // Exclusive: in a cluster, the primary would share it out among the workers.
      this.server.listen({ ...where, exclusive: true }, () => {
        this.server.off('error', reject);
        resolve();
      });
    });
  }

  async close(): Promise<void> {
    const closed = new Promise((resolve) => this.server.close(resolve));
    this.server.closeAllConnections();
    await closed;
    process.off('exit', this.#remove);
    this.#remove();
  }
}
