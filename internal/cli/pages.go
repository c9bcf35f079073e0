package cli

import (
	"encoding/json"
	"fmt"
)

// pageMerger joins the pages of a list into one object of the API's own shape
// without taking the rows apart.
type pageMerger struct {
	key  string
	rows []json.RawMessage
	next string
}

func (m *pageMerger) add(page []byte) error {
	var fields map[string]json.RawMessage
	if err := json.Unmarshal(page, &fields); err != nil {
		return fmt.Errorf("decode the page: %w", err)
	}
	var rows []json.RawMessage
	if err := json.Unmarshal(fields[m.key], &rows); err != nil {
		return fmt.Errorf("decode %s: %w", m.key, err)
	}
	m.rows = append(m.rows, rows...)
	return nil
}

func (m *pageMerger) bytes() ([]byte, error) {
	rows := m.rows
	if rows == nil {
		rows = []json.RawMessage{}
	}
	out := map[string]any{m.key: rows}
	if m.next != "" {
		out["next_cursor"] = m.next
	}
	return json.Marshal(out)
}
