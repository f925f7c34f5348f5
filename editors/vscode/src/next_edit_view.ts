/** View of the next-edit proposal: removed and inserted text, and a hint at the cursor while they are out of sight. */
// VS Code's stable API shows inline suggestions at the cursor only, so these are decorations.

import * as vscode from 'vscode';
import type { LanguageClient } from 'vscode-languageclient/node';
import { NextEditState, endOf, type Cursor, type NextEdit } from './next_edit';

type Completions = vscode.InlineCompletionItem[] | vscode.InlineCompletionList | null | undefined;

const REJECTED = 'localdflash/didRejectNextEdit';

export class NextEditView implements vscode.Disposable {
    private readonly state = new NextEditState();
    private readonly removed = vscode.window.createTextEditorDecorationType({
        backgroundColor: new vscode.ThemeColor('diffEditor.removedTextBackground'),
        textDecoration: 'line-through',
    });
    private readonly added = vscode.window.createTextEditorDecorationType({});
    private readonly parts: vscode.Disposable[];
    private client: LanguageClient | undefined;

    /** `isSilenced` returns whether a document gets no proposals; call `update` when the answer may have changed. */
    constructor(private readonly isSilenced: (document: vscode.TextDocument) => boolean) {
        const update = (): void => this.update();
        const register = vscode.commands.registerCommand;
        this.parts = [
            this.removed,
            this.added,
            vscode.workspace.onDidChangeTextDocument(({ document }) => {
                this.state.changed(document.uri.toString(), document.version);
                this.update();
            }),
            vscode.window.onDidChangeTextEditorSelection(update),
            vscode.window.onDidChangeTextEditorVisibleRanges(update),
            vscode.window.onDidChangeActiveTextEditor(update),
            register('localdflash.nextEdit', () => this.goOrAccept()),
            register('localdflash.dismissNextEdit', () => this.dismiss()),
            register('localdflash.hideCompletion', () => this.hideCompletion()),
        ];
    }

    dispose(): void {
        vscode.Disposable.from(...this.parts).dispose();
    }

    /** Show the proposals of this server from now on. */
    listen(client: LanguageClient): void {
        this.client = client;
        this.forget();
        client.onNotification('localdflash/didUpdateNextEdit', (proposal: NextEdit) => {
            // The server may write the URI in another form than VS Code.
            const uri = client.protocol2CodeConverter.asUri(proposal.textDocument.uri).toString();
            this.state.propose({ ...proposal, textDocument: { ...proposal.textDocument, uri } });
            this.update();
        });
    }

    /** Return the completions for the editor, and hide the proposal while one of them is shown. */
    async watch<T extends Completions>(
        document: vscode.TextDocument,
        place: vscode.Position,
        answer: vscode.ProviderResult<T>,
    ): Promise<T | null | undefined> {
        const cursor = { uri: document.uri.toString(), version: document.version, place };
        const found = await answer;
        const items = Array.isArray(found) ? found : (found?.items ?? []);
        this.state.completion(cursor, items.length);
        this.update();
        return found;
    }

    /** Show or hide the proposal, as the cursor, the completions and `isSilenced` require. */
    update(): void {
        const showing = this.state.showing(this.here());
        for (const editor of vscode.window.visibleTextEditors) {
            const active = editor === vscode.window.activeTextEditor && showing === 'shown';
            this.draw(editor, active ? this.state.proposal : undefined);
        }
        void vscode.commands.executeCommand('setContext', 'localdflash.nextEditShown', showing === 'shown');
        void vscode.commands.executeCommand('setContext', 'localdflash.nextEditHidden', showing === 'hidden');
    }

    private draw(editor: vscode.TextEditor, proposal: NextEdit | undefined): void {
        if (!proposal) {
            editor.setDecorations(this.removed, []);
            editor.setDecorations(this.added, []);
            return;
        }
        const range = rangeOf(proposal);
        const insertion = text(proposal.edit.newText, 'diffEditor.insertedTextBackground');
        const shown: vscode.DecorationOptions[] = [
            { range: new vscode.Range(range.end, range.end), renderOptions: { after: insertion } },
        ];
        if (!editor.visibleRanges.some((visible) => visible.contains(range.start))) {
            const end = editor.document.lineAt(editor.selection.active.line).range.end;
            const pointer = text(`   next edit: line ${range.start.line + 1} (Tab)`);
            shown.push({ range: new vscode.Range(end, end), renderOptions: { after: pointer } });
        }
        editor.setDecorations(this.removed, range.isEmpty ? [] : [range]);
        editor.setDecorations(this.added, shown);
    }

    private async goOrAccept(): Promise<void> {
        const editor = vscode.window.activeTextEditor;
        const proposal = this.state.proposal;
        const step = this.state.step(this.here());
        if (!editor || !proposal || step === 'nothing') {
            return;
        }
        const range = rangeOf(proposal);
        if (step === 'go') {
            editor.selection = new vscode.Selection(range.start, range.start);
            editor.revealRange(range, vscode.TextEditorRevealType.InCenterIfOutsideViewport);
            return;
        }
        const { line, character } = endOf(proposal.edit.newText, range.start);
        const end = new vscode.Position(line, character);
        await editor.edit((builder) => builder.replace(range, proposal.edit.newText));
        editor.selection = new vscode.Selection(end, end);
    }

    private async dismiss(): Promise<void> {
        const about = this.state.proposal?.textDocument;
        this.forget();
        if (about) {
            const uri = this.client?.code2ProtocolConverter.asUri(vscode.Uri.parse(about.uri));
            await this.client?.sendNotification(REJECTED, { textDocument: { uri } });
        }
    }

    private async hideCompletion(): Promise<void> {
        await vscode.commands.executeCommand('editor.action.inlineSuggest.hide');
        this.state.completionGone();
        this.update();
    }

    private forget(): void {
        this.state.forget();
        this.update();
    }

    /** Return the active editor's cursor; undefined with several cursors, or if the document is silenced. */
    private here(): Cursor | undefined {
        const editor = vscode.window.activeTextEditor;
        if (!editor || editor.selections.length !== 1 || this.isSilenced(editor.document)) {
            return undefined;
        }
        const { document, selection } = editor;
        return { uri: document.uri.toString(), version: document.version, place: selection.active };
    }
}

function rangeOf({ edit: { range } }: NextEdit): vscode.Range {
    return new vscode.Range(range.start.line, range.start.character, range.end.line, range.end.character);
}

/** Return the decoration that draws a text: in one line, and with non-breaking spaces, as others are not drawn. */
function text(content: string, background?: string): vscode.ThemableDecorationAttachmentRenderOptions {
    const contentText = content.replaceAll(/\r?\n/g, '↵').replaceAll(' ', '\u00a0');
    const color = new vscode.ThemeColor('editorGhostText.foreground');
    return { contentText, color, ...(background ? { backgroundColor: new vscode.ThemeColor(background) } : {}) };
}
