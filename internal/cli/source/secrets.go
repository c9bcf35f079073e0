package source

import (
	"time"

	"github.com/spf13/cobra"

	"github.com/fusevm/fuse/internal/api/client"
	"github.com/fusevm/fuse/internal/api/gen"
)

// secret is "playground secret".
func (a *app) secret() *cobra.Command {
	return group("secret", "Tokens, keys and values that playgrounds need; sealed, and never shown again", "secrets",
		a.setSecret(), a.listSecrets(false), a.removeSecret("rm NAME", "Forget a secret"))
}

func (a *app) setSecret() *cobra.Command {
	var req gen.SetPlaygroundSecret
	var file, header, expires string
	cmd := a.verb("set NAME", "Set a secret from standard input, a file, or as it is typed", cobra.ExactArgs(1),
		func(cmd *cobra.Command, p client.Sources, args []string) (err error) {
			req.Name = args[0]
			if err := a.value(&req, file, header, expires); err != nil {
				return err
			}
			s, err := p.SetSecret(cmd.Context(), req)
			if err != nil {
				return err
			}
			return a.show(s, s.ID, a.secretFields(s))
		})
	f := cmd.Flags()
	f.StringVar(&req.Kind, "kind", "token", "`token` (of a git server, over https), ssh_key (its deploy key) or value (of a variable)")
	f.StringVarP(&req.Username, "username", "u", "", "`user` that a git server wants beside a token")
	a.valueFlags(cmd, &req, &file, &header, &expires)
	return cmd
}

func (a *app) valueFlags(cmd *cobra.Command, req *gen.SetPlaygroundSecret, file, header, expires *string) {
	f := cmd.Flags()
	f.StringVar(file, "file", "", "`file` that holds it (default: standard input)")
	f.StringVar(expires, "expires", "", "`time` at which it ends, as 2026-12-31T00:00:00Z")
	f.StringVar(&req.Source, "source", "", "https `address` that new values come from, as {\"token\": …, \"expires_at\": …}")
	f.StringVar(header, "source-authorization-file", "", "`file` with the Authorization header that the source is asked with")
}

// value reads what a secret holds, unless a source gives it.
func (a *app) value(req *gen.SetPlaygroundSecret, file, header, expires string) (err error) {
	if req.Source == "" || file != "" {
		if req.Value, err = a.read(file, "the secret"); err != nil {
			return err
		}
	}
	if header != "" {
		if req.SourceAuthorization, err = a.read(header, "the header"); err != nil {
			return err
		}
	}
	if expires != "" {
		if req.ExpiresAt, err = time.Parse(time.RFC3339, expires); err != nil {
			return a.Usage("--expires %q: want a time such as 2026-12-31T00:00:00Z", expires)
		}
	}
	return nil
}

func (a *app) secretFields(s gen.PlaygroundSecret) [][2]string {
	fields := [][2]string{{"name", s.Name}, {"id", s.ID}, {"kind", s.Kind}, {"owner", s.Owner}, {"set", a.since(s.UpdatedAt)}}
	if s.Username != "" {
		fields = append(fields, [2]string{"user", s.Username})
	}
	if !s.ExpiresAt.IsZero() {
		fields = append(fields, [2]string{"ends", s.ExpiresAt.UTC().Format(time.RFC3339)})
	}
	if s.Failure != "" {
		fields = append(fields, [2]string{"failure", s.Failure})
	}
	return fields
}

func (a *app) listSecrets(registries bool) *cobra.Command {
	short := "List secrets; never what they hold"
	if registries {
		short = "List the registries that playgrounds are logged in at"
	}
	cmd := a.verb("ls", short, cobra.NoArgs, func(cmd *cobra.Command, p client.Sources, _ []string) error {
		all, err := p.Secrets(cmd.Context())
		if err != nil {
			return err
		}
		out := gen.PlaygroundSecretList{Secrets: []gen.PlaygroundSecret{}}
		var rows [][]string
		for _, s := range all.Secrets {
			if (s.Kind == "registry") != registries {
				continue
			}
			out.Secrets = append(out.Secrets, s)
			ends := "-"
			if !s.ExpiresAt.IsZero() {
				ends = s.ExpiresAt.UTC().Format(time.RFC3339)
			}
			rows = append(rows, []string{s.Name, s.ID, s.Kind, or(s.Username, "-"), or(s.Marquee, "-"), a.since(s.UpdatedAt), ends, or(s.Failure, "-")})
		}
		return a.PrintList(out, []string{"NAME", "ID", "KIND", "USER", "MARQUEE", "SET", "ENDS", "NOTE"}, rows)
	})
	cmd.Aliases = []string{"list"}
	return cmd
}

func (a *app) removeSecret(use, short string) *cobra.Command {
	return a.verb(use, short, cobra.ExactArgs(1), func(cmd *cobra.Command, p client.Sources, args []string) error {
		return p.RemoveSecret(cmd.Context(), args[0])
	})
}

// registry is "marquee registry".
func (a *app) registry() *cobra.Command {
	return group("registry", "Logins at registries of images", "registries", a.login(), a.listSecrets(true), a.removeSecret("logout REGISTRY", "Forget a login"))
}

func (a *app) login() *cobra.Command {
	req := gen.SetPlaygroundSecret{Kind: "registry"}
	var file, header, expires string
	cmd := a.verb("login REGISTRY", "Log the playgrounds in at a registry, with a password from standard input", cobra.ExactArgs(1),
		func(cmd *cobra.Command, p client.Sources, args []string) error {
			req.Name = args[0]
			if err := a.value(&req, file, header, expires); err != nil {
				return err
			}
			s, err := p.SetSecret(cmd.Context(), req)
			if err != nil {
				return err
			}
			return a.show(s, s.ID, a.secretFields(s))
		})
	cmd.Long = "login keeps the password or token sealed on the server. Marquees get it for the playgrounds whose\n" +
		"images come from that registry, each in a file of its own that only root can read, and lose it\n" +
		"with the playground. docker.io is Docker Hub."
	cmd.Flags().StringVarP(&req.Username, "username", "u", "", "`user` to log in as")
	cmd.Flags().StringVarP(&req.Marquee, "marquee", "m", "", "for every playground on this `marquee`, not only your own")
	a.valueFlags(cmd, &req, &file, &header, &expires)
	return cmd
}

// hook is "playground git-hook".
func (a *app) hook() *cobra.Command {
	var req gen.AddGitHook
	var file string
	add := a.verb("add REPOSITORY", "Let a git server say when a repository has changed", cobra.ExactArgs(1), func(cmd *cobra.Command, p client.Sources, args []string) (err error) {
		req.Repository = args[0]
		if file != "" {
			if req.Secret, err = a.read(file, "the secret"); err != nil {
				return err
			}
		}
		h, err := p.AddGitHook(cmd.Context(), req)
		if err != nil {
			return err
		}
		if format, err := a.Format(); err == nil && format != "json" {
			a.Progress("have the git server send pushes as application/json to this path below the server's address, with this secret; it is not shown again")
		}
		return a.show(h, h.ID, [][2]string{{"id", h.ID}, {"repository", h.Repository}, {"path", h.Path}, {"secret", h.Secret}})
	})
	add.Flags().StringVar(&file, "file", "", "`file` with the secret (default: one is made)")
	list := a.verb("ls", "List git hooks", cobra.NoArgs, func(cmd *cobra.Command, p client.Sources, _ []string) error {
		all, err := p.GitHooks(cmd.Context())
		if err != nil {
			return err
		}
		var rows [][]string
		for _, h := range all.Hooks {
			rows = append(rows, []string{h.ID, h.Repository, h.Path, a.since(h.HeardAt)})
		}
		return a.PrintList(all, []string{"ID", "REPOSITORY", "PATH", "HEARD"}, rows)
	})
	list.Aliases = []string{"list"}
	remove := a.verb("rm ID", "Forget a git hook", cobra.ExactArgs(1), func(cmd *cobra.Command, p client.Sources, args []string) error {
		return p.RemoveGitHook(cmd.Context(), args[0])
	})
	return group("git-hook", "What git servers call when somebody pushed", "git-hooks", add, list, remove)
}
