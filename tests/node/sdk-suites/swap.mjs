// A vite plugin that gives the tests of an SDK checkout our transports in place of the SDK's.
import { realpathSync } from 'node:fs';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';

const LIB = fileURLToPath(new URL('../../../bindings-node/lib/', import.meta.url));
const SHIM = '\0tailrope:';

/**
 * Where a test imports one of `line.modules`, it gets the module with our classes of the same names. The SDK's own
 * sources keep theirs, for our classes extend them. What our modules import from the published packages is resolved
 * to the checkout's sources, so that there is one copy of each class.
 */
export function swap(checkout, line) {
  const root = join(realpathSync(checkout), '/');
  const modules = new Map(Object.entries(line.modules).map(([file, names]) => [root + file, names]));

  return {
    name: 'tailrope',
    enforce: 'pre',
    async resolveId(source, importer, options) {
      if (importer === undefined || importer.startsWith(SHIM)) {
        return undefined;
      }
      if (importer.startsWith(LIB) || line.isSource(importer.slice(root.length))) {
        const file = line.sourceOf(source);
        return file === undefined ? undefined : root + file;
      }
      if (!importer.startsWith(root) || importer.includes('/node_modules/')) {
        return undefined;
      }
      const resolved = await this.resolve(source, importer, { ...options, skipSelf: true });
      return modules.has(resolved?.id) ? SHIM + resolved.id : resolved;
    },
    load(id) {
      if (!id.startsWith(SHIM)) {
        return undefined;
      }
      const stock = id.slice(SHIM.length);
      // An explicit export wins over one of the same name that comes with the star.
      return [
        `export * from ${JSON.stringify(stock)};`,
        `export { ${modules.get(stock).join(', ')} } from ${JSON.stringify(LIB + line.ours)};`,
      ].join('\n');
    },
  };
}
