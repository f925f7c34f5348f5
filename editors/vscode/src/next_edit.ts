/** State of the next-edit proposal, and whether it is shown. Imports no `vscode`, so that tests need no editor. */

export interface Place {
    line: number;
    character: number;
}

/** Parameters of `localdflash/didUpdateNextEdit`: a replacement in one version of a document. */
export interface NextEdit {
    textDocument: { uri: string; version: number };
    edit: { range: { start: Place; end: Place }; newText: string };
}

/** The cursor's position in a version of a document. */
export interface Cursor {
    uri: string;
    version: number;
    place: Place;
}

/** `hidden`: a completion is shown instead. `none`: there is no proposal for this version of this document. */
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

    /** Record that the editor got completions: it shows one until the cursor moves, or until `completionGone`. */
    completion(cursor: Cursor, count: number): void {
        this.completed = count > 0 ? cursor : undefined;
    }

    /** Record that the editor hid the completion. */
    completionGone(): void {
        this.completed = undefined;
    }

    /** Drop the proposal if its document has another version now. */
    changed(uri: string, version: number): void {
        const about = this.proposed?.textDocument;
        if (about?.uri === uri && about.version !== version) {
            this.forget();
        }
    }

    /** Return whether the proposal is shown while the cursor is there; undefined: no single cursor. */
    showing(cursor: Cursor | undefined): Showing {
        const about = this.proposed?.textDocument;
        if (!about || about.uri !== cursor?.uri || about.version !== cursor.version) {
            return 'none';
        }
        return this.completed && isSame(this.completed, cursor) ? 'hidden' : 'shown';
    }

    /** Return the effect of Tab: accept the proposal if the cursor is in its range, else go to the range. */
    step(cursor: Cursor | undefined): 'nothing' | 'go' | 'accept' {
        if (!cursor || !this.proposed || this.showing(cursor) !== 'shown') {
            return 'nothing';
        }
        const { start, end } = this.proposed.edit.range;
        return isOrdered(start, cursor.place) && isOrdered(cursor.place, end) ? 'accept' : 'go';
    }
}

/** Return the end of a text that starts at a position. */
export function endOf(text: string, start: Place): Place {
    const lines = text.split(/\r?\n/);
    const last = lines[lines.length - 1] ?? '';
    return { line: start.line + lines.length - 1, character: (lines.length === 1 ? start.character : 0) + last.length };
}

function isOrdered(one: Place, other: Place): boolean {
    return one.line < other.line || (one.line === other.line && one.character <= other.character);
}

function isSame(one: Cursor, other: Cursor): boolean {
    const isSamePlace = one.place.line === other.place.line && one.place.character === other.place.character;
    return isSamePlace && one.uri === other.uri && one.version === other.version;
}
