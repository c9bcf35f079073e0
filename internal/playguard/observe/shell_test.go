package observe_test

import (
	"bytes"
	"encoding/json"
	"os"
	"os/exec"
	"strings"
	"testing"
	"text/template"

	"github.com/fusevm/fuse/internal/playguard/observe"
)

// block returns the code block of one language in the design note.
func block(t *testing.T, language string) string {
	t.Helper()
	doc, err := os.ReadFile("../../../docs/design/playguard.md")
	if err != nil {
		t.Fatal(err)
	}
	_, after, ok := strings.Cut(string(doc), "```"+language+"\n")
	text, _, ok2 := strings.Cut(after, "```")
	if !ok || !ok2 {
		t.Fatalf("no block of %s in the design note", language)
	}
	return text
}

// TestShellWritesFrames runs the shell functions of the design note in every
// shell that is here: what they write is a frame, byte for byte.
func TestShellWritesFrames(t *testing.T) {
	want, err := observe.Encode(nonce, []observe.Part{
		{Name: "host", Out: []byte("a=1\nb=2\n")},
		{Name: "empty"},
		{Name: "fails", Status: 7, Out: []byte("out without newline"), Err: []byte("what went wrong\n")},
		{Name: "loud", Status: 1, Err: bytes.Repeat([]byte("x"), observe.MaxErrText)},
	})
	if err != nil {
		t.Fatal(err)
	}
	script := block(t, "sh") + `
fails() { printf 'out without newline'; echo 'what went wrong' >&2; return 7; }
loud() { dd if=/dev/zero bs=9000 count=1 2>/dev/null | tr '\0' x >&2; return 1; }
frame_begin
part host printf 'a=1\nb=2\n'
part empty true
part fails fails
part loud loud
frame_end
`
	for _, shell := range [][]string{{"sh"}, {"dash"}, {"bash", "--posix"}, {"busybox", "sh"}} {
		if _, err := exec.LookPath(shell[0]); err != nil && shell[0] != "sh" {
			continue
		}
		cmd := exec.CommandContext(t.Context(), shell[0], append(shell[1:], "-s")...)
		cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "LC_ALL=C", "tmp=" + t.TempDir(), "nonce=" + nonce}
		cmd.Stdin = strings.NewReader(script)
		got, err := cmd.Output()
		if err != nil || !bytes.Equal(got, want) {
			t.Errorf("%v: %v\n%.600s\nwant\n%.600s", shell, err, got, want)
		}
	}
}

// TestInspectTemplate fills in the template of the design note as docker does.
func TestInspectTemplate(t *testing.T) {
	asJSON := func(v any) (string, error) {
		b, err := json.Marshal(v)
		return string(b), err
	}
	tmpl, err := template.New("").Funcs(template.FuncMap{"json": asJSON}).Parse(strings.TrimSpace(block(t, "gotemplate")))
	if err != nil {
		t.Fatal(err)
	}
	var labelMap map[string]string
	if err := json.Unmarshal([]byte(labels("inst1", "shop--p1")), &labelMap); err != nil {
		t.Fatal(err)
	}
	state := map[string]any{"Status": "exited", "ExitCode": 137, "FinishedAt": "2026-01-02T11:00:00.123456789Z"}
	var line bytes.Buffer
	for _, health := range []any{nil, map[string]any{"Status": "unhealthy"}} {
		state["Health"] = health
		if err := tmpl.Execute(&line, map[string]any{
			"ID": "c1", "Name": `/a"b`, "State": state,
			"HostConfig": map[string]any{"RestartPolicy": map[string]any{"Name": "no"}}, "Config": map[string]any{"Labels": labelMap},
		}); err != nil {
			t.Fatal(err)
		}
		line.WriteByte('\n')
	}
	l := conclude(encode(t, with("containers", out(line.String()))))
	got, ok := l.Project(project(t, "shop--p1")).Containers()
	if !ok || len(got) != 2 || got[0].Exit != 137 || got[0].Name != `a"b` || got[0].Health != "" || got[1].Health != "unhealthy" || got[0].Finished.Year() != 2026 {
		t.Errorf("%v %+v", ok, got)
	}
}
