/** Rows of cells as CSV. A text that a spreadsheet would take for a formula (a worker's name is a VM's word) stays text. */
export function csv(rows) {
  return rows.map((row) => row.map(cell).join(",")).join("\r\n");
}

function cell(value) {
  const text = `${typeof value === "string" && /^[=+\-@\t\r]/.test(value) ? "'" : ""}${value ?? ""}`;
  return /[",\r\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
}
