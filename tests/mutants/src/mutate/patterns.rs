//! Arms of a `match`, and `matches!`, that lack one of their patterns.

use super::{Edit, Finder, is, words};
use std::ops::Range;
use syn::parse::{Parse, ParseStream};
use syn::spanned::Spanned;
use syn::visit::{self, Visit};
use syn::{Arm, Expr, ExprMacro, Pat, PatOr, Token};

/// `_`, or a name for all the rest.
pub(super) fn is_rest(pattern: &Pat) -> bool {
    match pattern {
        Pat::Wild(_) => true,
        Pat::Ident(ident) => ident.subpat.is_none() && is_binding(&ident.ident),
        _ => false,
    }
}

fn is_binding(name: &syn::Ident) -> bool {
    name.to_string().starts_with(|c: char| c.is_lowercase() || c == '_')
}

/// The alternatives within a pattern, and whether it binds anything.
#[derive(Default)]
struct Alternatives<'ast> {
    all: Vec<&'ast PatOr>,
    binds: bool,
}

impl<'ast> Visit<'ast> for Alternatives<'ast> {
    fn visit_pat_or(&mut self, pattern: &'ast PatOr) {
        self.all.push(pattern);
        visit::visit_pat_or(self, pattern);
    }

    fn visit_pat_ident(&mut self, pattern: &'ast syn::PatIdent) {
        self.binds |= is_binding(&pattern.ident);
        visit::visit_pat_ident(self, pattern);
    }

    fn visit_field_pat(&mut self, field: &'ast syn::FieldPat) {
        // `{ name }` binds, too.
        self.binds |= field.colon_token.is_none();
        visit::visit_field_pat(self, field);
    }
}

/// What stands between the parentheses of `matches!`.
struct Matches(Pat);

impl Parse for Matches {
    fn parse(input: ParseStream<'_>) -> syn::Result<Self> {
        input.parse::<Expr>()?;
        input.parse::<Token![,]>()?;
        let pattern = Pat::parse_multi_with_leading_vert(input)?;
        if input.peek(Token![if]) {
            input.parse::<Token![if]>()?;
            input.parse::<Expr>()?;
        }
        input.parse::<Option<Token![,]>>()?;
        Ok(Self(pattern))
    }
}

impl Finder<'_> {
    /// `ref it @ (A | B) if !(is(1) && matches!(*it, A)) && …`: the conditions, each with its mutant.
    pub(super) fn without_one_case(&mut self, arm: &Arm) -> Vec<(Option<usize>, String)> {
        let mut found = Alternatives::default();
        found.visit_pat(&arm.pat);
        if found.binds || arm.guard.as_ref().is_some_and(|(_, guard)| super::has_let(guard)) {
            return Vec::new();
        }
        let whole = arm.pat.span().byte_range();
        let mut conditions = Vec::new();
        for or in found.all {
            let range = or.span().byte_range();
            for case in &or.cases {
                let number = self.mutant(case.span(), "delete this pattern", false);
                let alone = self.replaced(&whole, &range, self.text(case));
                conditions.push((Some(number), format!("!({} && matches!(*case, {alone})) && ", is(number))));
            }
        }
        if !conditions.is_empty() {
            let open = conditions.iter().map(|(number, _)| (*number, String::new())).collect();
            self.edits.push(Edit { range: whole, for_all: "ref case @ (", open, close: ")" });
        }
        conditions
    }

    pub(super) fn without_one_pattern(&mut self, expr: &ExprMacro) {
        if !super::is_last(&expr.mac.path, "matches") {
            return;
        }
        let Ok(Matches(pattern)) = syn::parse2(expr.mac.tokens.clone()) else { return };
        let mut found = Alternatives::default();
        found.visit_pat(&pattern);
        let whole = expr.span().byte_range();
        let mut alternatives = Vec::new();
        for or in found.all {
            let range = or.span().byte_range();
            for (at, case) in or.cases.iter().enumerate() {
                let others = or.cases.iter().enumerate().filter(|(other, _)| *other != at);
                let others: Vec<&str> = others.map(|(_, other)| self.text(other)).collect();
                let text = self.replaced(&whole, &range, &others.join(" | "));
                alternatives.push((self.mutant(case.span(), "delete this pattern", false), text));
            }
        }
        if !alternatives.is_empty() {
            self.choose(whole, alternatives);
        }
    }

    /// The text of `whole`, on one line, with another one in place of what is in `part`.
    fn replaced(&self, whole: &Range<usize>, part: &Range<usize>, by: &str) -> String {
        let text = format!("{}{by}{}", &self.source[whole.start..part.start], &self.source[part.end..whole.end]);
        if text.contains("//") || text.contains('"') { text } else { words(&text) }
    }
}
