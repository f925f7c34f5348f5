/** Choice of the model: from the output of `localdflash models list`, or a file. */

import { execFile } from 'node:child_process';
import { homedir } from 'node:os';
import { promisify } from 'node:util';
import * as vscode from 'vscode';
import { parseModels, type Model } from './model_list';
import * as settings from './settings';

const LIST_TIMEOUT_MS = 30_000; // Python's imports from a cold disk take seconds

interface Choice extends vscode.QuickPickItem {
    /** The setting's new value; undefined asks for a file. */
    pair?: string;
    missing?: boolean;
}

/** Let the user choose a model and write the setting, which restarts the server. */
export async function choose(log: vscode.LogOutputChannel): Promise<void> {
    const chosen = await vscode.window.showQuickPick(listChoices(log), {
        title: 'localdflash: choose the model for completions',
        placeHolder: 'Model id or file',
        matchOnDescription: true,
    });
    if (!chosen) {
        return;
    }
    const pair = chosen.pair ?? (await chooseFile());
    if (pair === undefined) {
        return;
    }
    await settings.setPair(pair);
    if (chosen.missing) {
        await download(pair);
    }
}

async function listChoices(log: vscode.LogOutputChannel): Promise<Choice[]> {
    const now = settings.pair();
    const items: Choice[] = [
        { label: 'default', description: 'the model in the settings of localdflash', pair: '' },
        ...(await runModelsList(log)).map((model) => ({ ...model, pair: model.label })),
        { label: 'A GGUF file…', description: 'any model that llama.cpp runs' },
    ];
    return items.map((item) => (item.pair === now ? { ...item, label: `$(check) ${item.label}` } : item));
}

/** Return the models of `localdflash models list`; if that fails, log the error and return []. */
async function runModelsList(log: vscode.LogOutputChannel): Promise<Model[]> {
    try {
        const options = { cwd: homedir(), timeout: LIST_TIMEOUT_MS, maxBuffer: 16_000_000 };
        const { stdout } = await promisify(execFile)(settings.launch().command, ['models', 'list', '--json'], options);
        return parseModels(stdout);
    } catch (error) {
        log.error(String(error));
        return [];
    }
}

async function chooseFile(): Promise<string | undefined> {
    const found = await vscode.window.showOpenDialog({ title: 'A GGUF file', filters: { GGUF: ['gguf'] } });
    return found?.[0]?.fsPath;
}

/** Offer a terminal that contains the download command; only the user runs it. */
async function download(id: string): Promise<void> {
    const message = `localdflash: ${id} is not on this machine yet.`;
    const open = 'Download in a Terminal';
    if ((await vscode.window.showInformationMessage(message, open)) === open) {
        const terminal = vscode.window.createTerminal({ name: 'localdflash', cwd: homedir() });
        terminal.show();
        const { command } = settings.launch();
        terminal.sendText(`${command.includes(' ') ? `"${command}"` : command} models pull ${id}`, false);
    }
}
