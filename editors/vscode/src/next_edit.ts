/** What is proposed as the next edit, and whether it may be seen. No editor in here: it is tested without one. */

export interface Place {
    line: number;
    character: number;
}

/** `localdflash/didUpdateNextEdit`, as the server sends it: one line's text, for one version of a document. */
export interface NextEdit {
    textDocument: { uri: string; version: number };
    edit: { range: { start: Place; end: Place }; newText: string };
}

/** Where the user is. */
export interface Cursor {
    uri: string;
    version: number;
    place: Place;
}

/** `hidden` is a proposal that waits for a completion to go; `none` also stands for one that is out of date. */
export type Showing = 'none' | 'hidden' | 'shown';

export class NextEditState {
    private proposed: NextEdit | undefined;
    private completed: Cursor | undefined;

    get proposal(): NextEdit | undefined {
        return this.proposed;
    }

    propose(proposal: NextEdit): void {
        this.proposed = proposal;
    }

    forget(): void {
        this.proposed = undefined;
    }

    /** The editor got completions for this cursor: it shows one there until it moves, or until `completionGone`. */
    completion(cursor: Cursor, count: number): void {
        this.completed = count > 0 ? cursor : undefined;
    }

    completionGone(): void {
        this.completed = undefined;
    }

    /** A change of its document takes a proposal back for good. */
    changed(uri: string, version: number): void {
        const about = this.proposed?.textDocument;
        if (about?.uri === uri && about.version !== version) {
            this.forget();
        }
    }

    showing(cursor: Cursor | undefined): Showing {
        const about = this.proposed?.textDocument;
        if (!about || about.uri !== cursor?.uri || about.version !== cursor.version) {
            return 'none';
        }
        return this.completed && isSame(this.completed, cursor) ? 'hidden' : 'shown';
    }

    /** What Tab does: the first one goes there, the second, or the first from there, accepts. */
    step(cursor: Cursor | undefined): 'nothing' | 'go' | 'accept' {
        if (!cursor || !this.proposed || this.showing(cursor) !== 'shown') {
            return 'nothing';
        }
        const { start, end } = this.proposed.edit.range;
        const { line, character } = cursor.place;
        return line === start.line && character >= start.character && character <= end.character ? 'accept' : 'go';
    }
}

function isSame(one: Cursor, other: Cursor): boolean {
    const places = one.place.line === other.place.line && one.place.character === other.place.character;
    return places && one.uri === other.uri && one.version === other.version;
}
