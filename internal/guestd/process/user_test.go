package process

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestLookup(t *testing.T) {
	t.Parallel()
	root := accounts(t, `root:x:0:0:root:/root:/bin/sh
# a comment
bad line
dev:x:1000:1000:A Developer:/home/dev:/bin/bash
twin:x:1000:2000::/home/twin:
77:x:78:79::/home/seventyseven:
nohome:x:5:5:::
`, `root:x:0:
dev:x:1000:
docker:x:900:other,dev
audio:x:29:dev,other
`)
	tests := []struct {
		user string
		want account
		err  string
	}{
		{user: "", want: account{name: "root", groups: []uint32{0}, home: "/root"}},
		{user: "dev", want: account{name: "dev", uid: 1000, gid: 1000, groups: []uint32{1000, 900, 29}, home: "/home/dev"}},
		{user: "1000", want: account{name: "dev", uid: 1000, gid: 1000, groups: []uint32{1000, 900, 29}, home: "/home/dev"}},
		{user: "dev:docker", want: account{name: "dev", uid: 1000, gid: 900, groups: []uint32{900}, home: "/home/dev"}},
		{user: "1000:5", want: account{name: "dev", uid: 1000, gid: 5, groups: []uint32{5}, home: "/home/dev"}},
		{user: "77", want: account{name: "77", uid: 78, gid: 79, groups: []uint32{79}, home: "/home/seventyseven"}},
		{user: "4242", want: account{uid: 4242, groups: []uint32{0}, home: "/"}},
		{user: "nohome", want: account{name: "nohome", uid: 5, gid: 5, groups: []uint32{5}, home: "/"}},
		{user: "ghost", err: `user "ghost"`},
		{user: "dev:ghost", err: `group "ghost"`},
		{user: ":5", err: `user ""`},
		{user: "dev:", err: `group ""`},
		{user: "bad line", err: `user "bad line"`},
	}
	for _, tt := range tests {
		got, err := lookup(root, tt.user)
		if tt.err != "" {
			if err == nil || !strings.Contains(err.Error(), tt.err) {
				t.Errorf("%q: error is %v, want one about %s", tt.user, err, tt.err)
			}
			continue
		}
		if err != nil {
			t.Errorf("%q: %v", tt.user, err)
		}
		if diff := cmp.Diff(tt.want, got, cmp.AllowUnexported(account{})); diff != "" {
			t.Errorf("%q:\n%s", tt.user, diff)
		}
	}
}

func TestLookupWithoutAccounts(t *testing.T) {
	t.Parallel()
	for _, user := range []string{"", "root", "0"} {
		got, err := lookup(t.TempDir(), user)
		if err != nil || got.uid != 0 || got.home != "/root" {
			t.Errorf("%q: %+v, %v", user, got, err)
		}
	}
}

func TestLookupRefusesAnEndlessFile(t *testing.T) {
	t.Parallel()
	root := accounts(t, strings.Repeat("u:x:1:1::/:\n", maxAccountFile/12+2), "")
	if _, err := lookup(root, "u"); err == nil || !strings.Contains(err.Error(), "longer than") {
		t.Errorf("error is %v", err)
	}
}

func accounts(t *testing.T, passwd, group string) string {
	t.Helper()
	root := t.TempDir()
	if err := os.Mkdir(filepath.Join(root, "etc"), 0o755); err != nil {
		t.Fatal(err)
	}
	for name, data := range map[string]string{"passwd": passwd, "group": group} {
		if err := os.WriteFile(filepath.Join(root, "etc", name), []byte(data), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return root
}

func FuzzParseStat(f *testing.F) {
	f.Add([]byte("12 (a) b) c) S 1 12 12 0 -1"))
	f.Add([]byte(") Z"))
	f.Fuzz(func(t *testing.T, data []byte) {
		if s, ok := parseStat(data); ok && s.state == 0 {
			t.Errorf("a process without a state from %q", data)
		}
	})
}

func TestParseStat(t *testing.T) {
	t.Parallel()
	got, ok := parseStat([]byte("12 (a) Z 9 9 9) S 1 13 14 0 -1 4194560"))
	if want := (procStat{state: 'S', parent: 1, group: 13, sessn: 14}); !ok || got != want {
		t.Errorf("%+v, %v; want %+v", got, ok, want)
	}
}
