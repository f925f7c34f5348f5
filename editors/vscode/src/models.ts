/** Choice of the model: from the output of `localdflash models list`, or a file. */

import { execFile } from 'node:child_process';
import { homedir } from 'node:os';
import { promisify } from 'node:util';
import * as vscode from 'vscode';
import { listed, type Model } from './model_list';
import * as settings from './settings';

const LIST_TIMEOUT_MS = 30_000; // Python's imports from a cold disk take seconds

interface Choice extends vscode.QuickPickItem {
    /** The setting's new value; undefined asks for a file. */
    pair?: string;
    missing?: boolean;
}

/** Let the user choose a model and write the setting, which restarts the server. */
export async function choose(log: vscode.LogOutputChannel): Promise<void> {
    const chosen = await vscode.window.showQuickPick(choices(log), {
        title: 'localdflash: the model that completes',
        placeHolder: 'An id, or a file',
        matchOnDescription: true,
    });
    if (!chosen) {
        return;
    }
    const pair = chosen.pair ?? (await file());
    if (pair === undefined) {
        return;
    }
    await settings.setPair(pair);
    if (chosen.missing) {
        await download(pair);
    }
}

async function choices(log: vscode.LogOutputChannel): Promise<Choice[]> {
    const now = settings.pair();
    const items: Choice[] = [
        { label: 'default', description: 'what localdflash itself is set to', pair: '' },
        ...(await models(log)).map((model) => ({ ...model, pair: model.label })),
        { label: 'A GGUF file…', description: 'that llama.cpp runs' },
    ];
    return items.map((item) => (item.pair === now ? { ...item, label: `$(check) ${item.label}` } : item));
}

/** Return the listed models; [] with a line in the log if the program fails, as a file can still be chosen. */
async function models(log: vscode.LogOutputChannel): Promise<Model[]> {
    try {
        const options = { cwd: homedir(), timeout: LIST_TIMEOUT_MS, maxBuffer: 16_000_000 };
        const { stdout } = await promisify(execFile)(settings.launch().command, ['models', 'list', '--json'], options);
        return listed(stdout);
    } catch (error) {
        log.error(String(error));
        return [];
    }
}

async function file(): Promise<string | undefined> {
    const found = await vscode.window.showOpenDialog({ title: 'A GGUF file', filters: { GGUF: ['gguf'] } });
    return found?.[0]?.fsPath;
}

/** Offer a terminal with the download command typed but not run: the user starts every download. */
async function download(id: string): Promise<void> {
    const said = `localdflash: ${id} is not on this machine yet.`;
    const open = 'Download in a Terminal';
    if ((await vscode.window.showInformationMessage(said, open)) === open) {
        const terminal = vscode.window.createTerminal({ name: 'localdflash', cwd: homedir() });
        terminal.show();
        const { command } = settings.launch();
        terminal.sendText(`${command.includes(' ') ? `"${command}"` : command} models pull ${id}`, false);
    }
}
