package main

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/cobra"

	"github.com/fusevm/fuse/internal/cli"
)

// The doctor asks the server that commands would, with the token that they would
// send; a context's goes to its own server alone.
func TestDoctorAsksWhatCommandsDo(t *testing.T) {
	a := cli.Context{Name: "a", BaseURL: "http://a", Token: "of a"}
	b := cli.Context{Name: "b", BaseURL: "http://b", TokenFile: "of b"}
	c := cli.Config{Contexts: []cli.Context{a, b}, CurrentContext: "a"}
	for name, tt := range map[string]struct {
		flags, env map[string]string
		want       cli.Context
	}{
		"the current context":          {want: a},
		"a context that is named":      {flags: map[string]string{"context": "b"}, env: map[string]string{"FUSE_URL": "http://c", "FUSE_TOKEN": "mine"}, want: b},
		"another server":               {env: map[string]string{"FUSE_URL": "http://c"}, want: cli.Context{Name: "http://c", BaseURL: "http://c"}},
		"a context's server":           {flags: map[string]string{"url": "http://b"}, want: b},
		"with a token":                 {env: map[string]string{"FUSE_TOKEN": "mine"}, want: cli.Context{Name: "a", BaseURL: "http://a", Token: "mine"}},
		"with a file":                  {flags: map[string]string{"token-file": "f"}, env: map[string]string{"FUSE_TOKEN": "mine"}, want: cli.Context{Name: "a", BaseURL: "http://a", TokenFile: "f"}},
		"another one than its context": {flags: map[string]string{"context": "a", "url": "http://c", "token": "mine"}, want: cli.Context{Name: "http://c", BaseURL: "http://c", Token: "mine"}},
	} {
		cmd := &cobra.Command{}
		for _, flag := range []string{"context", "url", "token", "token-file"} {
			cmd.Flags().String(flag, tt.flags[flag], "")
		}
		if diff := cmp.Diff(tt.want, inUse(cmd, c, func(name string) string { return tt.env[name] })); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
	}
}
