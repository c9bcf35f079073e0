// Package access holds the verbs of credentials: API keys, and the tokens of
// guests.
package access

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/fusevm/fuse/internal/api/client"
	"github.com/fusevm/fuse/internal/api/gen"
	"github.com/fusevm/fuse/internal/cli/kit"
)

type app struct{ kit.Tools }

// Key is "fuse key" with its verbs.
func Key(t kit.Tools) *cobra.Command {
	a := &app{t}
	cmd := &cobra.Command{
		Use: "key", Aliases: []string{"keys", "apikeys"}, Short: "API keys: who may use the server, and for what", Args: cobra.NoArgs,
		Long: "Roles: admin does everything; operator everything but keys and the server's own\n" +
			"settings; user makes and uses environments and sees those of its owner alone; read\n" +
			"looks at those.",
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(a.create(), a.list(), a.get(), a.revoke())
	return cmd
}

func (a *app) create() *cobra.Command {
	var req gen.CreateKey
	var expires time.Duration
	cmd := &cobra.Command{
		Use: "create [LABEL]", Short: "Make an API key; it is printed this once", Args: cobra.MaximumNArgs(1),
		Long: "create makes an API key and prints it. It is kept nowhere: put it where it is needed\n" +
			"at once. What it makes belongs to its owner, which is its own id unless --owner names\n" +
			"another: the owner of a key that it is to replace, or one that several keys share.",
		Example: "  fuse key create ci --role user --expires 720h\n  fuse key create ci-2 --owner ak_0123456789abcdef   # takes over from the first",
		RunE: func(cmd *cobra.Command, args []string) error {
			format, err := a.Format()
			if err != nil {
				return err
			}
			if len(args) == 1 {
				req.Label = args[0]
			}
			if cmd.Flags().Changed("expires") {
				if req.ExpiresInSeconds = int64(expires / time.Second); req.ExpiresInSeconds < 1 {
					return a.Usage("--expires %s is less than a second", expires)
				}
			}
			api, err := a.Server()
			if err != nil {
				return err
			}
			key, err := client.Credentials{API: api}.Create(cmd.Context(), req)
			if err != nil {
				return err
			}
			if format == "json" {
				return a.PrintJSON(key)
			}
			fmt.Fprintf(a.Err, "%s, role %s, owner %s\n", a.Cell(key.ID), a.Cell(key.Role), a.Cell(key.Owner))
			_, err = fmt.Fprintln(a.Out, a.Cell(key.Key))
			return err
		},
	}
	f := cmd.Flags()
	f.StringVar(&req.Role, "role", "user", "admin, operator, user or read")
	f.StringVar(&req.Owner, "owner", "", "whose what it makes is (default: its own)")
	f.DurationVar(&expires, "expires", 0, "how long it counts, such as 720h (default: until it is revoked)")
	return cmd
}

func (a *app) list() *cobra.Command {
	var all bool
	cmd := &cobra.Command{
		Use: "ls", Aliases: []string{"list"}, Short: "List API keys, the newest first", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			format, err := a.ListFormat()
			if err != nil {
				return err
			}
			api, err := a.Server()
			if err != nil {
				return err
			}
			list, err := client.Credentials{API: api}.Keys(cmd.Context())
			if err != nil {
				return err
			}
			shown := list.APIKeys[:0]
			for _, k := range list.APIKeys {
				if all || stateOf(k) == "active" {
					shown = append(shown, k)
				}
			}
			list.APIKeys = shown
			return a.printKeys(format, list)
		},
	}
	cmd.Flags().BoolVarP(&all, "all", "a", false, "revoked and expired ones too")
	return cmd
}

func (a *app) printKeys(format string, list gen.KeyList) error {
	switch format {
	case "json":
		return a.PrintJSON(list)
	case "name":
		for _, k := range list.APIKeys {
			fmt.Fprintln(a.Out, a.Cell(k.ID))
		}
		return nil
	}
	rows := make([][]string, 0, len(list.APIKeys))
	for _, k := range list.APIKeys {
		used := "never"
		if !k.LastUsedAt.IsZero() {
			used = a.Age(time.Now(), k.LastUsedAt) + " ago"
		}
		rows = append(rows, []string{k.ID, dash(k.Label), k.Role, k.Owner, stateOf(k), expiry(k), used})
	}
	return a.Table(a.Out, []string{"ID", "LABEL", "ROLE", "OWNER", "STATE", "EXPIRES", "USED"}, rows)
}

func dash(s string) string {
	if s == "" {
		return "-"
	}
	return s
}

func stateOf(k gen.Key) string {
	switch {
	case !k.RevokedAt.IsZero():
		return "revoked"
	case !k.ExpiresAt.IsZero() && !time.Now().Before(k.ExpiresAt):
		return "expired"
	}
	return "active"
}

func expiry(k gen.Key) string {
	if k.ExpiresAt.IsZero() {
		return "never"
	}
	return k.ExpiresAt.UTC().Format(time.RFC3339)
}

func (a *app) get() *cobra.Command {
	return &cobra.Command{
		Use: "get ID|LABEL", Short: "Show one API key, without its secret", Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			format, err := a.Format()
			if err != nil {
				return err
			}
			api, err := a.Server()
			if err != nil {
				return err
			}
			id, err := a.find(cmd.Context(), api, args[0])
			if err != nil {
				return err
			}
			k, err := client.Credentials{API: api}.Key(cmd.Context(), id)
			if err != nil {
				return err
			}
			switch format {
			case "json":
				return a.PrintJSON(k)
			case "name":
				_, err := fmt.Fprintln(a.Out, a.Cell(k.ID))
				return err
			}
			at := func(t time.Time) string {
				if t.IsZero() {
					return ""
				}
				return t.UTC().Format(time.RFC3339)
			}
			return a.Sheet(a.Out, [][2]string{
				{"id", k.ID}, {"label", k.Label}, {"role", k.Role}, {"owner", k.Owner}, {"state", stateOf(k)},
				{"made", at(k.CreatedAt)}, {"made by", k.CreatedBy}, {"expires", expiry(k)}, {"used", at(k.LastUsedAt)},
				{"revoked", at(k.RevokedAt)}, {"revoked by", k.RevokedBy},
			})
		},
	}
}

func (a *app) revoke() *cobra.Command {
	return &cobra.Command{
		Use: "revoke ID|LABEL...", Aliases: []string{"rm"}, Short: "End API keys at once; what they made stays", Args: cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			api, err := a.Server()
			if err != nil {
				return err
			}
			for _, name := range args {
				id, err := a.find(cmd.Context(), api, name)
				if err != nil {
					return err
				}
				if err := (client.Credentials{API: api}).Revoke(cmd.Context(), id); err != nil {
					return err
				}
				fmt.Fprintln(a.Out, a.Cell(id))
			}
			return nil
		},
	}
}

// find takes an id as it is, and a label that one active key has.
func (a *app) find(ctx context.Context, api *client.API, name string) (string, error) {
	if strings.HasPrefix(name, "ak_") {
		return name, nil
	}
	list, err := client.Credentials{API: api}.Keys(ctx)
	if err != nil {
		return "", err
	}
	var ids []string
	for _, k := range list.APIKeys {
		if k.Label == name && stateOf(k) == "active" {
			ids = append(ids, k.ID)
		}
	}
	switch len(ids) {
	case 0:
		return "", a.Usage("no active key has the id or label %q", name)
	case 1:
		return ids[0], nil
	}
	return "", a.Usage("%d keys have the label %q; name one of %s", len(ids), name, strings.Join(ids, ", "))
}
