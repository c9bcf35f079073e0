package source

import (
	"fmt"
	"os"
	"strconv"
	"strings"

	"github.com/goccy/go-yaml"
	"github.com/spf13/cobra"

	"github.com/fusevm/fuse/internal/api/client"
	"github.com/fusevm/fuse/internal/api/gen"
)

// template is "playground template".
func (a *app) template() *cobra.Command {
	return group("template", "What playgrounds are made from again and again", "templates", a.setTemplate(), a.listTemplates(), a.launch(), a.removeTemplate())
}

func (a *app) setTemplate() *cobra.Command {
	cmd := a.verb("set FILE", "Set a template from a YAML file", cobra.ExactArgs(1), func(cmd *cobra.Command, p client.Sources, args []string) error {
		raw, err := os.ReadFile(args[0])
		if err != nil {
			return fmt.Errorf("read the template: %w", err)
		}
		var t gen.PlaygroundTemplate
		if err := yaml.UnmarshalWithOptions(raw, &t, yaml.Strict(), yaml.UseJSONUnmarshaler()); err != nil {
			return a.Usage("%s is no template: %s", args[0], strings.SplitN(err.Error(), "\n", 2)[0])
		}
		out, err := p.SetTemplate(cmd.Context(), t)
		if err != nil {
			return err
		}
		return a.show(out, out.Name, [][2]string{{"name", out.Name}, {"repository", out.Repository}, {"branch", or(out.Branch, "main")}, {"variables", names(out)}})
	})
	cmd.Long = "A template names a repository and the variables that each playground of it fills in:\n\n" +
		"  name: shop\n  repository: https://git.example.org/shop.git\n  secret: git\n  variables:\n" +
		"    - {name: SIZE, type: choice, choices: [small, large], default: small}\n    - {name: API_KEY, sensitive: true, required: true}"
	return cmd
}

func names(t gen.PlaygroundTemplate) string {
	var out []string
	for _, v := range t.Variables {
		text := v.Name
		if v.Required {
			text += " (required)"
		}
		out = append(out, text)
	}
	return or(strings.Join(out, ", "), "-")
}

func (a *app) listTemplates() *cobra.Command {
	cmd := a.verb("ls", "List templates", cobra.NoArgs, func(cmd *cobra.Command, p client.Sources, _ []string) error {
		all, err := p.Templates(cmd.Context())
		if err != nil {
			return err
		}
		var rows [][]string
		for _, t := range all.Templates {
			rows = append(rows, []string{t.Name, t.Owner, t.Repository, or(t.Branch, "main"), names(t), or(t.Description, "-")})
		}
		return a.PrintList(all, []string{"NAME", "OWNER", "REPOSITORY", "BRANCH", "VARIABLES", "DESCRIPTION"}, rows)
	})
	cmd.Aliases = []string{"list"}
	return cmd
}

func (a *app) removeTemplate() *cobra.Command {
	return a.verb("rm NAME", "Forget a template; its playgrounds stay", cobra.ExactArgs(1), func(cmd *cobra.Command, p client.Sources, args []string) error {
		return p.RemoveTemplate(cmd.Context(), args[0])
	})
}

func (a *app) launch() *cobra.Command {
	var req gen.LaunchTemplate
	var vars, secrets []string
	var w waiting
	cmd := a.verb("launch TEMPLATE", "Make a playground of a template", cobra.ExactArgs(1), func(cmd *cobra.Command, p client.Sources, args []string) (err error) {
		if req.Variables, err = a.pairs("--var", vars); err != nil {
			return err
		}
		if req.SecretVariables, err = a.pairs("--secret-var", secrets); err != nil {
			return err
		}
		req.Name = or(req.Name, args[0])
		g, err := p.Launch(cmd.Context(), args[0], req)
		if err != nil {
			return err
		}
		return a.await(cmd.Context(), p, g, w)
	})
	f := cmd.Flags()
	f.StringVarP(&req.Name, "name", "n", "", "`name` of the playground (default: the template's)")
	f.StringVarP(&req.Branch, "branch", "b", "", "`branch` to follow (default: the template's)")
	f.StringVarP(&req.Marquee, "marquee", "m", "", "`marquee` to run on (default: the template's)")
	f.StringVar(&req.Expires, "expires", "", "when it ends by itself: 72h, a time, or never")
	f.StringArrayVar(&vars, "var", nil, "fill in a variable, `NAME=value` (repeatable)")
	f.StringArrayVar(&secrets, "secret-var", nil, "fill in a variable with a secret, `NAME=secret` (repeatable)")
	w.register(cmd)
	return cmd
}

// preview is "playground preview".
func (a *app) preview() *cobra.Command {
	var req gen.PlaygroundPreview
	var vars, secrets []string
	set := a.verb("set NAME", "Make a playground of each branch that matches", cobra.ExactArgs(1), func(cmd *cobra.Command, p client.Sources, args []string) (err error) {
		req.Name = args[0]
		if req.Variables, err = a.pairs("--var", vars); err != nil {
			return err
		}
		if req.SecretVariables, err = a.pairs("--secret-var", secrets); err != nil {
			return err
		}
		v, err := p.SetPreview(cmd.Context(), req)
		if err != nil {
			return err
		}
		return a.show(v, v.Name, [][2]string{{"name", v.Name}, {"template", v.Template}, {"branches", strings.Join(v.Branches, ", ")}, {"most", strconv.Itoa(v.Most)}})
	})
	f := set.Flags()
	f.StringVarP(&req.Template, "template", "t", "", "`template` that they are made of")
	f.StringSliceVarP(&req.Branches, "branches", "b", nil, "`pattern` of branches, such as 'feature/*'; one that begins with ! takes out what matches (repeatable)")
	f.IntVar(&req.Most, "most", 0, "`playgrounds` at a time (default 10)")
	f.StringVar(&req.Life, "life", "", "how long each lives after its branch last moved, such as 72h (default: as long as the branch is there)")
	f.StringArrayVar(&vars, "var", nil, "fill in a variable, `NAME=value` (repeatable)")
	f.StringArrayVar(&secrets, "secret-var", nil, "fill in a variable with a secret, `NAME=secret` (repeatable)")
	list := a.verb("ls", "List previews", cobra.NoArgs, func(cmd *cobra.Command, p client.Sources, _ []string) error {
		all, err := p.Previews(cmd.Context())
		if err != nil {
			return err
		}
		var rows [][]string
		for _, v := range all.Previews {
			note := v.Failure
			if note == "" && len(v.LeftOut) > 0 {
				note = "branches that have none: " + strings.Join(v.LeftOut, ", ")
			}
			rows = append(rows, []string{v.Name, v.Template, strings.Join(v.Branches, " "), fmt.Sprintf("%d of %d", v.Playgrounds, v.Most), a.since(v.LookedAt), or(note, "-")})
		}
		return a.PrintList(all, []string{"NAME", "TEMPLATE", "BRANCHES", "PLAYGROUNDS", "LOOKED", "NOTE"}, rows)
	})
	list.Aliases = []string{"list"}
	remove := a.verb("rm NAME", "Forget a preview; its playgrounds stay", cobra.ExactArgs(1), func(cmd *cobra.Command, p client.Sources, args []string) error {
		return p.RemovePreview(cmd.Context(), args[0])
	})
	return group("preview", "A playground for each branch of a repository", "previews", set, list, remove)
}
