/** What `localdflash models list --json` prints, as entries of a list. No editor in here: it is tested without one. */

export interface Model {
    /** The id. */
    label: string;
    description: string;
    detail: string;
    missing: boolean;
}

/** The models that something runs here, those on this machine first. Throws where the text is something else. */
export function listed(json: string): Model[] {
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
