package cli

import (
	"path/filepath"
	"strings"
	"testing"
)

// Whatever verb shows a playground names its marquee as people do, in columns.
func TestPlaygroundsNameTheirMarquee(t *testing.T) {
	const shop = `{"id":"P","name":"shop","marquee":"M","state":"running","expires_at":"2036-01-02T03:04:05Z","branch":{"repository":"r","branch":"b"}}`
	for _, verb := range []string{"playground get shop", "playground extend shop 1h", "playground follow https://example.org/r.git --detach", "playground check shop"} {
		url, _ := serve(t, "200 "+shop, `200 {"id":"M","name":"box"}`)
		r := runCLI(t, nil, "", append(strings.Fields(verb), "--url", url)...)
		columns := map[int]bool{}
		for line := range strings.Lines(r.out) {
			if at := strings.Index(line, " "); at > 0 && !strings.HasPrefix(line, "checked out") {
				columns[at+len(line[at:])-len(strings.TrimLeft(line[at:], " "))] = true
			}
		}
		if r.code != 0 || !strings.Contains(r.out, " box\n") || len(columns) != 1 {
			t.Errorf("%s: code %d, columns %v: %s%s", verb, r.code, columns, r.out, r.err)
		}
	}
}

// --quiet and -o name leave the ids of whatever is listed, without a heading.
func TestListsPrintIDsAlone(t *testing.T) {
	const when = `"created_at":"2026-01-02T03:04:05Z"`
	for _, c := range []struct{ verb, answer, want string }{
		{"ls", `{"environments":[` + envJSON + `]}`, "fuse-a\n"},
		{"host ls", `{"hosts":[{"id":"h1"},{"id":"h2"}]}`, "h1\nh2\n"},
		{"key ls", `{"api_keys":[{"id":"ak_1",` + when + `}]}`, "ak_1\n"},
		{"key ls", `{"api_keys":[]}`, ""},
		{"dead-letter ls", `{"dead_letters":[{"id":"stuck_task:fuse-a","kind":"stuck_task","entity_id":"fuse-a"}]}`, "stuck_task:fuse-a\n"},
		{"webhook ls", `{"webhooks":[{"id":"wh_1","url":"https://example.org"}]}`, "wh_1\n"},
		{"webhook ls", `{"webhooks":[]}`, ""},
		{"webhook deliveries wh_1", `{"deliveries":[{"id":"msg_1",` + when + `},{"id":"msg_2",` + when + `}]}`, "msg_1\nmsg_2\n"},
	} {
		for _, form := range []string{"--quiet", "--output=name"} {
			url, _ := serve(t, "200 "+c.answer)
			r := runCLI(t, nil, "", append(strings.Fields(c.verb), "--url", url, form)...)
			if r.code != 0 || r.out != c.want {
				t.Errorf("%s %s: code %d, printed %q %s, want %q", c.verb, form, r.code, r.out, r.err, c.want)
			}
		}
	}
	config := filepath.Join(t.TempDir(), "config.yaml")
	if r := runCLI(t, nil, "", "--config", config, "context", "add", "one", "http://127.0.0.1:1"); r.code != 0 {
		t.Fatal(r.err)
	}
	if r := runCLI(t, nil, "", "--config", config, "context", "ls", "-q"); r.out != "one\n" {
		t.Errorf("context ls -q prints %q", r.out)
	}
}

// Where a command goes may be said twice, but not with two meanings: the host
// would be registered with a server that nobody named.
func TestRegisterTakesOneAddress(t *testing.T) {
	url, seen := serve(t)
	for _, args := range [][]string{
		{"--url", "http://127.0.0.1:1", "host", "register", "h1", "--url", "https://10.0.0.1:8090", "--token", "tok"},
		{"host", "register", "h1", "--token", "one", "--url", "https://10.0.0.1:8090", "--token", "two"},
	} {
		r := runCLI(t, map[string]string{"FUSE_URL": url}, "", args...)
		if r.code != ExitUsage || !strings.Contains(r.err, "--context") || len(*seen) > 0 {
			t.Errorf("%q: code %d, %s; %d requests", args, r.code, r.err, len(*seen))
		}
	}
}
