//! What puts something on the disk is left out, or comes on the other side of the rename.

use super::Finder;
use proc_macro2::Span;
use syn::spanned::Spanned;
use syn::visit::{self, Visit};
use syn::{Block, Expr, ExprCall, ExprClosure, ExprMethodCall};

const SYNCS: [&str; 6] = ["sync", "sync_all", "sync_data", "sync_directory", "fsync", "fdatasync"];
const NAMES: [&str; 9] = [
    "hard_link",
    "link",
    "linkat",
    "persist",
    "rename",
    "rename_over",
    "rename_to_a_free",
    "renameat",
    "renameat_with",
];

/// The calls of a function, in order: whether each syncs, and where it is.
#[derive(Default)]
struct Calls(Vec<(bool, Span)>);

impl Calls {
    fn add(&mut self, name: &str, call: &impl Spanned) {
        let syncs = SYNCS.contains(&name);
        if syncs || NAMES.contains(&name) {
            self.0.push((syncs, call.span()));
        }
    }
}

impl<'ast> Visit<'ast> for Calls {
    fn visit_expr_call(&mut self, call: &'ast ExprCall) {
        visit::visit_expr_call(self, call);
        if let Expr::Path(path) = &*call.func
            && let Some(last) = path.path.segments.last()
        {
            self.add(&last.ident.to_string(), call);
        }
    }

    fn visit_expr_method_call(&mut self, call: &'ast ExprMethodCall) {
        visit::visit_expr_method_call(self, call);
        self.add(&call.method.to_string(), call);
    }

    fn visit_expr_closure(&mut self, _: &'ast ExprClosure) {}
    fn visit_item(&mut self, _: &'ast syn::Item) {}
}

impl Finder<'_> {
    pub(super) fn durability(&mut self, block: &Block) {
        let mut calls = Calls::default();
        calls.visit_block(block);
        for (at, (syncs, sync)) in calls.0.iter().enumerate() {
            if !syncs {
                continue;
            }
            let left_out = self.mutant(*sync, "leave this sync out", false);
            let mut instead = vec![(left_out, "Ok(())".to_owned())];
            let source = self.source;
            let text = |span: &Span| source[span.byte_range()].to_owned();
            let named = |(syncs, at): &(bool, Span)| (!syncs).then_some(*at);
            let moves = [
                calls.0[..at]
                    .iter()
                    .rev()
                    .find_map(named)
                    .map(|name| (name, "before", format!("let _ = {}; {}", text(sync), text(&name)))),
                calls.0[at + 1..]
                    .iter()
                    .find_map(named)
                    .map(|name| (name, "after", format!("let named = {}; let _ = {}; named", text(&name), text(sync)))),
            ];
            for (name, side, text) in moves.into_iter().flatten() {
                let (outer, inner) = (name.byte_range(), sync.byte_range());
                if outer.start < inner.end && inner.start < outer.end {
                    continue;
                }
                let number = self.mutant(*sync, &format!("sync {side} the rename"), false);
                instead.push((number, "Ok(())".to_owned()));
                self.choose(outer, vec![(number, text)]);
            }
            self.choose(sync.byte_range(), instead);
        }
    }
}
