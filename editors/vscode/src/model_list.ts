/** Parser of `localdflash models list --json`. Imports no `vscode`, so that tests need no editor. */

export interface Model {
    /** The id. */
    label: string;
    description: string;
    detail: string;
    missing: boolean;
}

/** Return the models that a backend can run, downloaded ones first. Throws if `json` is not a JSON array. */
export function parseModels(json: string): Model[] {
    const models: Model[] = [];
    for (const entry of JSON.parse(json) as Record<string, unknown>[]) {
        if (Array.isArray(entry.backends) && entry.backends.length > 0) {
            models.push(model(entry));
        }
    }
    return models.sort((one, other) => Number(one.missing) - Number(other.missing));
}

function model(entry: Record<string, unknown>): Model {
    const missing = Array.isArray(entry.missing) && entry.missing.length > 0;
    const memory = typeof entry.memory_gb === 'number' ? `${entry.memory_gb} GB of memory, ` : '';
    return {
        label: String(entry.id),
        description: memory + (missing ? 'to be downloaded' : 'on this machine'),
        detail: String(entry.description ?? ''),
        missing,
    };
}
