//! t
use sim::differential::*;
use sim::*;

fn fresh() -> Side<Model, Ticking> {
    let driver = Ticking::default();
    Side::new(Model::new(driver.0.clock()), driver)
}

#[test]
fn model_against_itself() {
    for knobs in
        [Knobs::everything(), Knobs::name_heavy(), Knobs::data_heavy(), Knobs::crash(), Knobs::host()]
    {
        let settings = Settings { tolerance: Tolerance::NONE, ..Settings::default() };
        assert_same(fresh, fresh, 0..4, knobs, 3000, settings);
    }
}
